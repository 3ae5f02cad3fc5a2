"""Borrowing for requests that a replica's own share of a limit has no room for.

Only such a request waits, for one round trip; others know nothing of it. Requests that lack the same wait together,
and one message carries what all of them lack. A limit that is used up everywhere is not asked for with every request
that comes: a client that sends too much must not make replicas send more messages.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from blade_router.admission.lending.quota_ledger import Shared, find
from blade_router.admission.window import slot_of

RETRY_SECONDS = 0.1
"""Seconds for which nobody is asked again for what no replica had."""
MAX_NEEDS = 256
"""Needs of one message; further ones go with the next."""

Need = tuple[str, int, int]
"""The quota's name, the resource, and the amount."""


class Borrower:
    """Collects what requests lack, and borrows it.

    Args:
        shared: what the replicas share.
        borrow: borrows these amounts from other replicas, as far as they have them.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        shared: Sequence[Shared],
        borrow: Callable[[Sequence[Need]], Awaitable[None]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared = shared
        self._borrow = borrow
        self._clock = clock
        self._collected: dict[tuple[str, int], int] = {}
        self._waiting: dict[tuple[str, int], asyncio.Future[bool]] = {}
        self._exhausted: dict[tuple[str, int], float] = {}
        """Until when what nobody had is not asked for."""
        self._pump: asyncio.Task[None] | None = None

    async def borrow(self, name: str, lacks: Sequence[tuple[int, int]]) -> bool:
        """Borrow resources of a quota; True when there is more of each than before, so that it is worth a look."""
        now = self._clock()
        if any(self._exhausted.get((name, resource), 0.0) > now for resource, _ in lacks):
            return False
        futures = []
        for resource, amount in lacks:
            key = name, resource
            future = self._waiting.get(key)
            if future is None:
                future = self._waiting[key] = asyncio.get_running_loop().create_future()
            self._collected[key] = self._collected.get(key, 0) + amount
            futures.append(future)
        if self._pump is None:
            self._pump = asyncio.create_task(self._send(), name="borrow shares of limits")
        return all(await asyncio.gather(*(asyncio.shield(future) for future in futures)))

    async def _send(self) -> None:
        """Send what was collected, until there is no more."""
        try:
            while self._collected:
                await asyncio.sleep(0)  # what comes in the same turn of the loop goes with it
                batch = dict(list(self._collected.items())[:MAX_NEEDS])
                for key in batch:
                    del self._collected[key]
                futures = {key: self._waiting.pop(key) for key in batch}
                before = {key: self._room(key) for key in batch}
                try:
                    await self._borrow([(name, resource, amount) for (name, resource), amount in batch.items()])
                finally:
                    self._settle(before, futures)
        finally:
            self._pump = None

    def _settle(
        self, before: dict[tuple[str, int], int], futures: dict[tuple[str, int], "asyncio.Future[bool]"]
    ) -> None:
        now = self._clock()
        self._exhausted = {key: until for key, until in self._exhausted.items() if until > now}
        for key, future in futures.items():
            gained = self._room(key) > before[key]
            if not gained:
                self._exhausted[key] = now + RETRY_SECONDS
            if not future.done():
                future.set_result(gained)

    def _room(self, key: tuple[str, int]) -> int:
        name, resource = key
        quota = find(self._shared, name)
        return quota.room(resource, slot_of(time.monotonic())) if quota is not None else 0
