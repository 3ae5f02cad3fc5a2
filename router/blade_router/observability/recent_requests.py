"""The requests in flight and those that ended last, for the web UI.

The data path leaves here what it knows of a request anyway, unformatted, and no prompt: what of it is shown is put into
words only while somebody looks. In number and size all of it is bounded.

So is the number of records a second, to what is shown of one: making a record costs hardly anything, but keeping those
of all requests took 2 to 4 of the 45 µs that one takes.
"""

from collections import deque
from typing import Final

from blade_router.observability.outcome import MAX_MODEL, MAX_PATH_BYTES
from blade_router.request.request import ClientRequest, EarlierAttempt, Route
from blade_router.request.usage import Usage

KEPT: Final = 1000
"""Requests that have ended and are kept: more than are shown, as a key sees its own only."""
PER_SECOND: Final = 200
"""Requests that are recorded when they end: in the long run of each second, and at once after one without. As many that
failed are recorded apart from them, as these are looked for."""
_BURST: Final = 1.0 - 1.0 / PER_SECOND
"""Seconds by which they may come before they are due."""


class RecentRequest:
    """What is known of one request. Times are ``time.perf_counter``'s, 0 for what has not happened.

    No dataclass, whose constructor would stay interpreted.
    """

    __slots__ = (
        *("attempts", "chosen_at", "code", "ended", "endpoint", "earlier_attempts", "first_byte_at", "id", "key"),
        *("model", "number", "path", "queued_at", "route", "route_words", "started", "status", "streamed"),
        *("trace_id", "usage"),
    )

    def __init__(self, request: ClientRequest, started: float) -> None:
        self.number = 0
        """Of those that were recorded, in order; 0: in flight."""
        self.started = started
        self.ended = 0.0
        self.trace_id = b"" if request.trace is None else request.trace.trace_id
        self.status = 0
        self.code = ""
        """Of the error that the router responded with."""
        path = request.path
        self.path = path[:MAX_PATH_BYTES]
        self.id: bytes = request.id
        self.key: str = request.key
        model = request.fields.model
        self.model = "" if model is None else model[:MAX_MODEL]
        self.streamed: bool = request.streamed or bool(request.fields.stream)
        self.endpoint: str = request.endpoint
        self.route: Route | None = request.route
        self.route_words: str = request.route_words
        self.attempts: int = request.attempts
        self.earlier_attempts: list[EarlierAttempt] | None = request.earlier_attempts
        self.queued_at: float = request.queued_at
        self.chosen_at: float = request.chosen_at
        self.first_byte_at: float = request.first_byte_at
        self.usage: Usage | None = request.usage


class RecentRequests:
    """Written by the data path, read by the web UI."""

    def __init__(self) -> None:
        self.in_flight: dict[ClientRequest, float] = {}
        """When each began, in the order in which they did."""
        self.ended: deque[RecentRequest] = deque(maxlen=KEPT)
        """The newest last."""
        self.count = 0
        """Of all that were recorded."""
        self._next_served = self._next_failed = float("-inf")
        """When the next one of each would be due if they came evenly."""

    def begin(self, request: ClientRequest, started: float) -> None:
        """A request was read."""
        self.in_flight[request] = started

    def end(self, request: ClientRequest, started: float, ended: float, status: int, code: str) -> None:
        """It has ended; ``code``: of the router's own error, empty for none."""
        del self.in_flight[request]
        # The leaky bucket as a meter (GCRA, ITU-T I.371): spread over the second where there are too many.
        due = self._next_served if status < 400 else self._next_failed
        if ended < due - _BURST:
            return
        due = max(due, ended) + 1.0 / PER_SECOND
        if status < 400:
            self._next_served = due
        else:
            self._next_failed = due
        recent = RecentRequest(request, started)
        recent.ended = ended
        recent.status = status
        recent.code = code
        self.count += 1
        recent.number = self.count
        self.ended.append(recent)
