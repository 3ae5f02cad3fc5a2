"""What one process of the router knows, for the pages that any of them serves."""

import secrets
from collections import Counter

import msgspec

from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.observability.recent_requests import KEPT, RecentRequests
from blade_router.ui.request_rows import SHOWN, ended_rows, in_flight_rows
from blade_router.ui.sampler import Sample, Sampler
from blade_router.ui.state import RequestRow


class Known(msgspec.Struct, frozen=True):
    """How much of a process's part its reader has already."""

    process: str = ""
    number: int = 0
    second: int = 0


class Part(msgspec.Struct, frozen=True):
    """What is new in one process."""

    process: str
    """Another one has another name, also where it took this one's place."""
    samples: tuple[Sample, ...]
    ended: tuple[RequestRow, ...]
    """In the order in which they did."""
    in_flight: tuple[RequestRow, ...]
    """The newest, the oldest of them first."""
    is_all: bool
    """There are no others in flight."""
    number: int
    """Of the last request that has ended."""
    endpoints: dict[str, int]
    """Requests in flight on each."""
    reported_at: float
    """Of its report of the service; 0: it has none."""

    @property
    def known(self) -> Known:
        """What a reader has who has this, too."""
        return Known(self.process, self.number, self.samples[-1].time if self.samples else 0)


class OwnPart:
    """This process's."""

    def __init__(self, endpoints: EndpointSet, recent: RecentRequests, sampler: Sampler) -> None:
        self._endpoints = endpoints
        self._recent = recent
        self._sampler = sampler
        self._process = secrets.token_hex(8)

    def since(self, known: Known, now: float, reported_at: float) -> Part:
        """What is new; ``now``: seconds since 1970."""
        self._sampler.sample(now)
        if known.process != self._process:
            known = Known()
        return Part(
            process=self._process,
            samples=tuple(self._sampler.since(known.second)),
            ended=tuple(ended_rows(self._recent, known.number, SHOWN if known.number else KEPT)),
            in_flight=tuple(in_flight_rows(self._recent)),
            is_all=len(self._recent.in_flight) <= SHOWN,
            number=self._recent.count,
            endpoints=Counter({each.name: each.in_flight for each in self._endpoints.all if each.in_flight}),
            reported_at=reported_at,
        )
