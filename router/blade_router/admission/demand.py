"""Demand: whether requests wait for an engine, in any process of this router, and who wants to know at once.

Whoever starts engines waits here. A request that a sibling process holds is found in the memory they share: it is
looked at now and then, and only while somebody waits.
"""

import asyncio

from blade_router.workers.shared_memory import PrivateRow, SharedRow

MAX_WAITERS = 8
"""Who may wait at the same time, in each process: one operator, and what its predecessors have left."""
SIBLING_SECONDS = 0.05
"""Seconds between two looks at what the sibling processes hold."""


class TooManyWaiters(Exception):
    """As many as allowed wait already."""


class Demand:
    """The number of held requests, and those who wait for one.

    Args:
        row: one number of each process: the requests it holds.
    """

    def __init__(self, row: SharedRow | PrivateRow | None = None) -> None:
        self._row = row or PrivateRow()
        self._waiters: set[asyncio.Future[None]] = set()
        self._closed = False

    def update(self, held: int) -> None:
        """This process holds so many requests now."""
        self._row.own[0] = held
        if held:
            self._wake()

    @property
    def present(self) -> bool:
        """Some process holds a request."""
        return self._row.total() > 0

    async def wait(self, seconds: float) -> bool:
        """Wait for at most so long; whether there is demand.

        Raises:
            TooManyWaiters: see ``MAX_WAITERS``.
        """
        if self.present or self._closed:
            return self.present
        if len(self._waiters) >= MAX_WAITERS:
            raise TooManyWaiters
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                if len(self._row.cells) == 1:
                    await waiter
                while not (waiter.done() or self.present):
                    await asyncio.wait((waiter,), timeout=SIBLING_SECONDS)
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)
            waiter.cancel()
        return self.present

    def close(self) -> None:
        """The router stops: nobody waits any longer."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
