"""How many requests an engine may have at a time, by its load reports.

A request beyond what an engine can run waits in the engine's own queue, in the order of arrival: whoever sends most is
served most. So the router sends it no more than it can run, and the rest waits in the router's queue, which is fair.
"""

from typing import Protocol

from blade_router.endpoints.endpoint import UNLIMITED

FULL_KV = 0.9
"""KV-cache usage from which on requests wait in an engine for blocks, though it has slots."""
WAITING_SHARE = 8
"""An engine counts as full when more than one eighth of what it runs waits in it, and more than ``LEAST_WAITING``:
a few always do, between two steps."""
LEAST_WAITING = 2
GROWTH = 8
"""With each report of a full engine's empty queue its limit grows by one part in so many."""


class Report(Protocol):
    """A load report, as far as it is needed here."""

    running: int
    waiting: int
    kv_usage: float | None
    capacity: int
    reported_at: float


class EngineLimit:
    """The limit of one engine: its slots, or what it runs when it is short of blocks."""

    __slots__ = ("_reported_at", "others", "requests")

    def __init__(self) -> None:
        self.requests = UNLIMITED
        self.others = 0
        """Requests of other routers and workers on it, when it last reported."""
        self._reported_at = 0.0

    def update(self, report: Report, in_flight: int = 0) -> int:
        """Take over the report if it is a new one; returns the limit.

        Args:
            in_flight: requests of this process on it.
        """
        if report.reported_at == self._reported_at:
            return self.requests
        self._reported_at = report.reported_at
        self.others = max(0, report.running + report.waiting - in_flight)
        most = report.capacity or UNLIMITED
        least = report.running + max(1, report.running // WAITING_SHARE)
        limit = self.requests
        if report.waiting > max(LEAST_WAITING, report.running // WAITING_SHARE) and (
            not report.capacity or (report.kv_usage or 0.0) >= FULL_KV
        ):
            limit = least
        elif not report.waiting and limit < most:
            limit += max(1, limit // GROWTH)
        self.requests = min(most, max(limit, least))
        return self.requests
