"""Router replica sync between simulated routers, with the messages of the real ones."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.replica_sync import messages
from blade_router.policies.replica_sync.siblings import Siblings
from blade_router.policies.sync_log import SyncLog

INTERVAL = 0.03
"""Seconds between two batches of a router ..."""
DELAY = 0.001
"""... and on their way."""


class Exchange:
    """Batches on their way between routers, each of which sends at a time of its own.

    Args:
        now: the time at the start, in seconds.
    """

    def __init__(self, clock: Callable[[], float], now: float, routers: int) -> None:
        self._clock = clock
        self._routers = routers
        self._siblings: list[Siblings] = []
        self._sequences = [0] * routers
        self._events: list[tuple[float, int, int, bytes]] = []
        """Time, order, router, and the message that arrives there; empty: it is to send one."""
        self._order = 0
        for at in range(routers):
            self._add(now + INTERVAL * (at + 1) / routers, at, b"")

    def join(self, endpoints: Sequence[Endpoint]) -> Siblings:
        """What the next router learns from the others."""
        log = SyncLog()
        log.active = self._routers > 1
        self._siblings.append(Siblings(log, lambda: endpoints, self._clock))
        return self._siblings[-1]

    @property
    def next_at(self) -> float:
        """When something is to be done next."""
        return self._events[0][0]

    def step(self) -> None:
        """Do it; the clock says ``next_at``."""
        now, _, router, message = heapq.heappop(self._events)
        siblings = self._siblings[router]
        if message:
            siblings.apply(messages.decode_batch(message))
            return
        self._add(now + INTERVAL, router, b"")
        events, _ = messages.pack(siblings.log.take(), now)
        self._sequences[router] += 1
        name = f"router {router}"
        batch = messages.Batch(messages.VERSION, name, name, messages.SALT, self._sequences[router], events)
        for other in range(self._routers):
            if other != router:
                self._add(now + DELAY, other, messages.encode_batch(batch))

    def _add(self, at: float, router: int, message: bytes) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, self._order, router, message))
