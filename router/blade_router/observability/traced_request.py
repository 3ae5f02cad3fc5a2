"""What a recorded request leaves for its spans, at the end of it.

One request in a hundred comes here, so what it runs is in no cache of the CPU: taking these few values costs the data
path little, where making spans of them would cost it as much as several requests. The thread that sends spans does
that, for hundreds at a time.
"""

from blade_router.http.accept.trusted_proxies import FORWARDED_FOR, TrustedProxies
from blade_router.http.trace_context import Trace
from blade_router.observability.outcome import MAX_MODEL, MAX_PATH_BYTES, Outcome
from blade_router.request.usage import Usage


class TracedRequest:
    """One request that has ended. Times are ``time.perf_counter``'s, 0 for what has not happened.

    It keeps neither body nor headers: in number and size what waits is bounded.
    """

    __slots__ = (
        *("address", "began", "ended", "id", "key", "method", "model", "parsed", "path", "started", "status"),
        *("streamed", "trace", "usage"),
    )

    def __init__(self, outcome: Outcome, trace: Trace, proxies: TrustedProxies) -> None:
        raw, client, request = outcome.raw, outcome.client, outcome.request
        self.trace = trace
        self.method = raw.method
        self.path = raw.path[:MAX_PATH_BYTES]
        self.status = outcome.status
        self.key = outcome.key
        address = client.address
        if proxies.trusts(address):
            address = proxies.client(address, [value for name, value in raw.headers if name == FORWARDED_FOR])
        self.address = address
        self.started = outcome.started
        self.began = client.began
        """When its response began."""
        self.ended = outcome.ended
        self.parsed = request is not None
        """Otherwise it was refused before it could be, and the rest is not known."""
        self.id = b""
        self.model = ""
        self.streamed = False
        self.usage: Usage | None = None
        if request is not None:
            self.id = request.id
            self.model = (request.fields.model or "")[:MAX_MODEL]
            self.streamed = request.streamed
            self.usage = request.usage
