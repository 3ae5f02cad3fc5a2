"""How an engine can fail to answer: what retries, breakers and the clients' errors tell apart."""

import errno

_NOBODY_THERE = {errno.ECONNREFUSED: "refused", errno.EHOSTUNREACH: "unreachable", errno.ENETUNREACH: "unreachable"}


class UpstreamError(Exception):
    """The engine gave no complete answer. ``reason`` is a short stable name for metrics and headers."""

    reason = "upstream"


class ConnectFailed(UpstreamError):
    """No connection, so nobody has worked on the request. ``absent``: the network said at once that nobody is there."""

    reason = "connect"

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.absent = code in _NOBODY_THERE
        self.sent = False
        """The request had been written to a connection before that one, which broke: somebody may have worked on it."""
        if code in _NOBODY_THERE:
            self.reason = _NOBODY_THERE[code]


class ConnectionLost(UpstreamError):
    """The connection ended before the answer did."""

    reason = "reset"


class StaleConnection(ConnectionLost):
    """A reused connection ended before the first byte of the answer: most likely closed while it was idle."""


class FirstByteTimeout(UpstreamError):
    """No byte of the answer's body in the time the router was told to wait."""

    reason = "timeout"


class Stalled(UpstreamError):
    """An answer that had begun stood still for as long as the router was told to wait."""

    reason = "stalled"


class GivenUp(UpstreamError):
    """The engine has said that it cannot go on with the answer, as it ends; another one can."""

    reason = "shutdown"


class BadAnswer(UpstreamError):
    """What came back is not HTTP/1.1."""

    reason = "protocol"
