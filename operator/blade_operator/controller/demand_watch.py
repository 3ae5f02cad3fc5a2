"""Waits at the routers of services that sleep at zero engines, so that the first request wakes them at once.

Each router has a connection on which nothing happens until a request is held there. It only says when to reconcile:
what is to be done follows from the signals that are queried then. So nothing is lost with a connection, or with this
process: who is not waited for, or cannot be reached, is found by the next resync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from blade_operator import backoff, metrics
from blade_operator.descriptors import affordable
from blade_operator.fleet import Router
from blade_operator.model.objects import Key

MOST = 8192
"""Routers that are waited for at the same time. As many are left out as there are no file descriptors for."""
_SHARE = 0.5
"""Of the file descriptors."""
QUICK = 1.0
"""Seconds. A wait that ends sooner without demand was none: the router is too old to let anybody wait, or stops."""
PAUSE = 1.0
MOST_PAUSE = 30.0
"""Seconds between two waits while there is demand that wakes nobody, doubled each time."""

Wait = Callable[[Router], Awaitable[bool]]


class DemandWatch:
    """The routers that are waited for, by service.

    ``wait`` returns whether requests are held in a router, once that is so or after a while; it raises
    OSError or ValueError when the router does not say. ``on_demand`` is called for a service whose router holds one.
    """

    def __init__(self, wait: Wait, on_demand: Callable[[Key], None], most: int | None = None) -> None:
        self._wait = wait
        self._on_demand = on_demand
        self._most = affordable(MOST, _SHARE) if most is None else most
        self._tasks: dict[Key, dict[str, asyncio.Task[None]]] = {}
        self._routers: dict[tuple[Key, str], Router] = {}
        """The routers as they are now, by service and name."""
        self._count = 0

    def __len__(self) -> int:
        """Number of routers that are waited for."""
        return self._count

    def watch(self, key: Key, routers: Iterable[Router]) -> None:
        """Wait for demand at these routers of a service, and at no others; none: it does not sleep."""
        tasks, named = self._tasks.setdefault(key, {}), {router.name: router for router in routers}
        for name in [name for name in tasks if name not in named]:
            tasks.pop(name).cancel()
            self._routers.pop((key, name), None)
            self._count -= 1
        for name, router in named.items():
            if name in tasks:
                self._routers[key, name] = router
            elif self._count < self._most:
                self._routers[key, name] = router
                tasks[name] = asyncio.create_task(self._follow(key, name), name=f"demand {name}")
                self._count += 1
        if not tasks:
            del self._tasks[key]
        metrics.DEMAND_WATCHES.set(self._count)

    def close(self) -> None:
        """Wait for nothing any more."""
        for key in list(self._tasks):
            self.watch(key, ())

    async def _follow(self, key: Key, name: str) -> None:
        clock = asyncio.get_running_loop().time
        failures, pause = 0, PAUSE
        while True:
            began = clock()
            try:
                demand = await self._wait(self._routers[key, name])
            except (OSError, ValueError):
                failures += 1
                await asyncio.sleep(backoff.delay(failures))
                continue
            if demand:
                self._on_demand(key)
                await asyncio.sleep(pause)
                pause = min(MOST_PAUSE, 2 * pause)
            elif clock() - began < QUICK:
                failures += 1
                await asyncio.sleep(max(QUICK, backoff.delay(failures)))
                continue
            else:
                pause = PAUSE
            failures = 0
