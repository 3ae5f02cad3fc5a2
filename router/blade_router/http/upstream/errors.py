"""Upstream errors: the failures of an engine that retries, circuit breakers and client errors distinguish."""

import errno
from urllib.parse import urlsplit

from blade_router.http.accept.descriptors import EXHAUSTED

_NOT_LISTENING = {errno.ECONNREFUSED: "refused", errno.EHOSTUNREACH: "unreachable", errno.ENETUNREACH: "unreachable"}

EXHAUSTED_REASON = "exhausted"


class UpstreamError(Exception):
    """The engine gave no complete response. ``reason`` is a short stable name for metrics and headers."""

    reason = "upstream"


class ConnectFailed(UpstreamError):
    """No connection, so the request reached nobody. ``absent``: the network said at once that nobody listens."""

    reason = "connect"

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.absent = code in _NOT_LISTENING
        self.sent = False
        """The request had been written to an earlier connection that broke: an engine may have worked on it."""
        if code in _NOT_LISTENING:
            self.reason = _NOT_LISTENING[code]


class OutOfResources(ConnectFailed):
    """No connection, because this process or its machine has no descriptor, port or memory left for one.

    It says nothing about the engine: it is never booked on one.
    """

    reason = EXHAUSTED_REASON


def connect_failed(message: str, code: int | None) -> ConnectFailed:
    """The failure to connect for an error number."""
    return OutOfResources(message, code) if code in EXHAUSTED else ConnectFailed(message, code)


class ConnectionLost(UpstreamError):
    """The connection ended before the response did."""

    reason = "reset"


class StaleConnection(ConnectionLost):
    """A reused connection ended before the first byte of the response: most likely closed while it was idle."""


class FirstByteTimeout(UpstreamError):
    """No byte of the response's body within the first-byte time-out."""

    reason = "timeout"


class Stalled(UpstreamError):
    """No byte of a begun response for the stall time-out."""

    reason = "stalled"


class EngineShutdown(UpstreamError):
    """The engine shuts down and has ended its stream early; another replica can resume it."""

    reason = "shutdown"


class BadResponse(UpstreamError):
    """The response is malformed."""

    reason = "protocol"


class UnexpectedStatus(UpstreamError):
    """The engine responded, but not with 200; ``status`` is what it sent."""

    reason = "status"

    def __init__(self, url: str, status: int) -> None:
        super().__init__(f"{urlsplit(url).path}: status {status}")
        self.status = status
