"""Shared endpoint health: failures of endpoints, published between the worker processes of one router.

Each worker checks endpoints itself and learns from its own requests, so each would lose its own requests to a failing
engine. What one detects it writes into memory that all share; the others poll that many times a second. Only failures
are published: the recovery of an endpoint is detected by each worker's own check, which is frequent while it is out.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet

WIDTH = 3
"""Numbers a worker keeps about an endpoint: when it published (ns), which failure, and until when it lasts (ns)."""
INTERVAL = 0.05
"""Seconds between two polls."""
STALE = 1_000_000_000
"""A failure published longer ago (ns) is ignored: everyone has checked since."""
DOWN, DRAINING, EJECTED = 1, 2, 3

Failure = tuple[int, int]
"""Its kind, and until when it lasts (ns; 0 where it has no end)."""


class Cell(Protocol):
    """Whole numbers of one worker about one endpoint."""

    def __getitem__(self, place: int) -> int: ...

    def __setitem__(self, place: int, value: int) -> None: ...


class Row(Protocol):
    """What all workers publish about one endpoint."""

    @property
    def own(self) -> Cell: ...

    @property
    def cells(self) -> Sequence[Cell]:
        """The cells of all workers, in their order, the own one among them."""
        ...

    def close(self) -> None: ...


class SharedHealth:
    """This worker's part of the shared endpoint health.

    Args:
        endpoints: this worker's endpoints; it listens for changes, and applies those of others.
        open_row: opens the shared row of that name, ``WIDTH`` numbers wide. May raise when there is none left: then
            nothing is shared about that endpoint.
        clock: monotonic, in ns, and the same for all processes of the machine.
    """

    def __init__(
        self, endpoints: EndpointSet, open_row: Callable[[str], Row], *, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._endpoints = endpoints
        self._open_row = open_row
        self._clock = clock
        self._rows: dict[Endpoint, Row | None] = {}
        self._last: dict[Endpoint, Failure | None] = {}
        """The failure published about it last, by this worker or another: it is not published again."""
        self._applied: dict[Endpoint, list[int]] = {}
        """For each worker, when the newest failure was published that has been applied (ns)."""
        endpoints.listeners.append(self.publish)

    async def follow(self) -> None:
        """Poll what others publish, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            self.poll()

    def publish(self) -> None:
        """Something has changed here: publish new failures."""
        self._sync_rows()
        for endpoint, row in self._rows.items():
            failure = _failure(endpoint)
            if row is None or failure == self._last.get(endpoint):
                continue
            self._last[endpoint] = failure
            if failure is not None:
                row.own[1], row.own[2] = failure
                row.own[0] = self._clock()

    def poll(self) -> None:
        """Apply what others have published since the last poll."""
        now = self._clock()
        for endpoint, row in list(self._rows.items()):
            if row is None:
                continue
            applied = self._applied[endpoint]
            for worker, cell in enumerate(row.cells):
                published_at = cell[0]
                if published_at <= applied[worker]:
                    continue
                applied[worker] = published_at
                if cell is not row.own and now - published_at < STALE:
                    self._apply(endpoint, (cell[1], cell[2]), now)

    def _apply(self, endpoint: Endpoint, failure: Failure, now: int) -> None:
        kind, until = failure
        self._last[endpoint] = failure
        health = endpoint.health
        if kind == DOWN:
            health.mark_down("another worker of this router found it so")
            health.check_now()
        elif kind == DRAINING:
            health.mark_draining()
        elif kind == EJECTED and until > now:
            health.eject_for((until - now) / 1e9)
        self._last[endpoint] = _failure(endpoint)

    def _sync_rows(self) -> None:
        """Keep one row for each endpoint there is."""
        current = set(self._endpoints.all)
        for endpoint in [each for each in self._rows if each not in current]:
            row = self._rows.pop(endpoint)
            self._last.pop(endpoint, None)
            self._applied.pop(endpoint, None)
            if row is not None:
                row.close()
        for endpoint in self._endpoints.all:
            if endpoint not in self._rows:
                try:
                    row = self._open_row(endpoint.url)
                except Exception:  # whatever shared memory runs out of: sharing is a help, and not needed
                    row = None
                self._rows[endpoint] = row
                self._last[endpoint] = None
                self._applied[endpoint] = [self._clock()] * len(row.cells) if row is not None else []


def _failure(endpoint: Endpoint) -> Failure | None:
    """What is wrong with it, if anything."""
    health = endpoint.health
    if health.up is False:
        return DOWN, 0
    if health.draining:
        return DRAINING, 0
    if not health.breaker.closed:
        return EJECTED, int(health.breaker.open_until * 1e9)
    return None
