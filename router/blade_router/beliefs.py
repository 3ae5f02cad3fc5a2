"""Bad news about endpoints, told between the worker processes of one router.

Each worker checks endpoints itself and learns from its own requests, so each would lose its own requests to a failing
engine. What one finds out it writes into memory that all share; the others look there many times a second. Only bad
news travels: an endpoint that comes back is found by everyone's own check, which is frequent while it is out.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from blade_router.endpoints import Endpoint, EndpointSet

WIDTH = 3
"""Numbers a worker keeps about an endpoint: when it told (ns), what, and until when (ns)."""
INTERVAL = 0.05
"""Seconds between two looks."""
STALE = 1_000_000_000
"""News older than this (ns) says nothing any more: everyone has checked since."""
DOWN, DRAINING, EJECTED = 1, 2, 3

News = tuple[int, int]
"""What, and until when (ns; 0 where it has no end)."""


class Cell(Protocol):
    """Whole numbers of one worker about one endpoint."""

    def __getitem__(self, place: int) -> int: ...

    def __setitem__(self, place: int, value: int) -> None: ...


class Row(Protocol):
    """What all workers tell about one endpoint."""

    @property
    def own(self) -> Cell: ...

    @property
    def cells(self) -> Sequence[Cell]:
        """All workers', in their order, the own one among them."""
        ...

    def close(self) -> None: ...


class SharedBeliefs:
    """This worker's part of it.

    Args:
        endpoints: what it believes; it listens for changes, and applies those of others.
        open_row: the shared row of that name, ``WIDTH`` numbers wide. May raise when there is none left: then that
            endpoint is everyone's own affair.
        clock: monotonic, in ns, and the same for all processes of the machine.
    """

    def __init__(
        self, endpoints: EndpointSet, open_row: Callable[[str], Row], *, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._endpoints = endpoints
        self._open_row = open_row
        self._clock = clock
        self._rows: dict[Endpoint, Row | None] = {}
        self._told: dict[Endpoint, News | None] = {}
        """What was told about it last, by us or to us: it is not told again."""
        self._heard: dict[Endpoint, list[int]] = {}
        """Until when news about it has been heard, from each worker (ns)."""
        endpoints.listeners.append(self.tell)

    async def follow(self) -> None:
        """Look what others tell, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            self.hear()

    def tell(self) -> None:
        """Something has changed here: write down what is new and bad."""
        self._match()
        for endpoint, row in self._rows.items():
            news = _news(endpoint)
            if row is None or news == self._told.get(endpoint):
                continue
            self._told[endpoint] = news
            if news is not None:
                row.own[1], row.own[2] = news
                row.own[0] = self._clock()

    def hear(self) -> None:
        """Believe what others have told since the last look."""
        now = self._clock()
        for endpoint, row in list(self._rows.items()):
            if row is None:
                continue
            heard = self._heard[endpoint]
            for worker, cell in enumerate(row.cells):
                stamp = cell[0]
                if stamp <= heard[worker]:
                    continue
                heard[worker] = stamp
                if cell is not row.own and now - stamp < STALE:
                    self._believe(endpoint, (cell[1], cell[2]), now)

    def _believe(self, endpoint: Endpoint, news: News, now: int) -> None:
        what, until = news
        self._told[endpoint] = news
        if what == DOWN:
            endpoint.mark_down("another worker of this router found it so")
            endpoint.suspect()
        elif what == DRAINING:
            endpoint.mark_draining()
        elif what == EJECTED and until > now:
            endpoint.pause((until - now) / 1e9)
        self._told[endpoint] = _news(endpoint)

    def _match(self) -> None:
        """A row for each endpoint there is."""
        current = set(self._endpoints.all)
        for endpoint in [each for each in self._rows if each not in current]:
            row = self._rows.pop(endpoint)
            self._told.pop(endpoint, None)
            self._heard.pop(endpoint, None)
            if row is not None:
                row.close()
        for endpoint in self._endpoints.all:
            if endpoint not in self._rows:
                try:
                    row = self._open_row(endpoint.url)
                except Exception:  # whatever shared memory runs out of: this is a help, and not needed
                    row = None
                self._rows[endpoint] = row
                self._told[endpoint] = None
                self._heard[endpoint] = [self._clock()] * len(row.cells) if row is not None else []


def _news(endpoint: Endpoint) -> News | None:
    """What is bad about it."""
    if endpoint.up is False:
        return DOWN, 0
    if endpoint.engine_draining:
        return DRAINING, 0
    if not endpoint.breaker.closed:
        return EJECTED, int(endpoint.breaker.open_until * 1e9)
    return None
