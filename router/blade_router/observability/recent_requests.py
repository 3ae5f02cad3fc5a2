"""The requests in flight and those that ended last, for the web UI.

The data path leaves here what it knows of a request anyway, unformatted, and no prompt: what of it is shown is put into
words only while somebody looks. In number and size all of it is bounded.
"""

from collections import deque
from typing import Final

from blade_router.http.trace_context import Span
from blade_router.observability.outcome import MAX_PATH_BYTES
from blade_router.request.request import ClientRequest, EarlierAttempt, Route
from blade_router.request.usage import Usage

KEPT: Final = 1000
"""Requests that have ended and are kept: more than are shown, as a key sees its own only."""
MAX_MODEL: Final = 256
"""Characters of a model's name that are kept."""


class RecentRequest:
    """What is known of one request. Times are ``time.perf_counter``'s, 0 for what has not happened.

    No dataclass, whose constructor would stay interpreted.
    """

    __slots__ = (
        *("attempts", "chosen_at", "code", "ended", "endpoint", "earlier_attempts", "first_byte_at", "id", "key"),
        *("model", "number", "path", "queued_at", "route", "route_words", "span", "started", "status", "streamed"),
        "usage",
    )

    def __init__(self, request: ClientRequest, started: float, span: Span | None) -> None:
        self.number = 0
        """Of those that have ended, in order; 0: in flight."""
        self.started = started
        self.ended = 0.0
        self.span = span
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
        self.in_flight: dict[ClientRequest, tuple[float, Span | None]] = {}
        """When each began, and its span, in the order in which they did."""
        self.ended: deque[RecentRequest] = deque(maxlen=KEPT)
        """The newest last."""
        self.count = 0
        """Of all that have ended."""

    def begin(self, request: ClientRequest, started: float, span: Span | None) -> None:
        """A request was read."""
        self.in_flight[request] = (started, span)

    def end(self, request: ClientRequest, started: float, ended: float, status: int, code: str) -> None:
        """It has ended; ``code``: of the router's own error, empty for none."""
        _, span = self.in_flight.pop(request, (0.0, None))
        recent = RecentRequest(request, started, span)
        recent.ended = ended
        recent.status = status
        recent.code = code
        self.count += 1
        recent.number = self.count
        self.ended.append(recent)
