"""Validation of a request's head.

llhttp refuses most ambiguous requests: bare LF or CR, folded lines, space before a colon, odd bytes in names and
targets, several or odd lengths, a length beside a transfer coding. This module refuses what llhttp lets pass and a
proxy must not, because the engine behind it could read it differently (request smuggling).
"""

from blade_protocol.paths import origin_form
from blade_router.http.body_budget import BodyCharge
from blade_router.http.errors import Headers, Refused, header_of
from blade_router.http.trace_context import Trace

MAX_HEAD_BYTES = 128 * 1024
"""Limit of request line and headers."""
MAX_HEADERS = 256

_CHECKED_HEADERS = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect", b"traceparent"))


class RawRequest:
    """One request as it was read: nothing in it has been interpreted but its framing.

    No dataclass, whose constructor would stay interpreted.
    """

    __slots__ = (
        *("body", "body_bytes", "charge", "chunked", "expects_continue", "headers", "http11", "keep_alive", "key"),
        *("length", "method", "target", "trace", "traceparent"),
    )

    def __init__(
        self, method: bytes, target: bytes, headers: Headers, http11: bool, keep_alive: bool, *, body: bytes = b""
    ) -> None:
        self.method = method
        self.target = target
        """Origin form: it begins with one slash. Its path ends in none: with one it means the same here, and engines
        would redirect it."""
        self.headers = headers
        """Names in lower case."""
        self.http11 = http11
        """Otherwise HTTP/1.0."""
        self.keep_alive = keep_alive
        self.length: int | None = None
        """The Content-Length, where there is one."""
        self.chunked = False
        self.expects_continue = False
        """It waits for ``100 Continue`` before it sends its body."""
        self.body = body
        self.body_bytes = 0
        """Size of the body as it came."""
        self.charge: BodyCharge | None = None
        """What the request takes of the budget of bodies; None where there is no body."""
        self.key = ""
        """The name of its API key; known for large bodies only, which count in that key's share of memory."""
        self.traceparent = b""
        """That header; empty without one."""
        self.trace: Trace | None = None
        """The trace it belongs to; None: there is none, or it was not looked for yet."""

    @property
    def path(self) -> bytes:
        return self.target.partition(b"?")[0]

    @property
    def is_traced(self) -> bool:
        """It is recorded in a trace."""
        return self.trace is not None and self.trace.sampled

    def header(self, name: bytes) -> bytes:
        """The first header of that name, empty without one."""
        return header_of(self.headers, name)


def read_head(method: bytes, target: bytes, version: str, keep_alive: bool, headers: Headers) -> RawRequest:
    """Validate the head of a request whose body is still to come.

    Raises:
        Refused: 400 for an ambiguous request, 417 for an expectation other than ``100-continue``.
    """
    if version not in ("1.1", "1.0"):
        raise bad_request(f"HTTP/{version} is not spoken here; use HTTP/1.1")
    if not target.startswith(b"/"):
        found = origin_form(target)
        if found is None:
            what = "CONNECT and OPTIONS * are not supported"
            raise bad_request(f"the request target must be a path, or an http URL; {what}")
        target = found
    if b"#" in target:
        raise bad_request("the request target must have no fragment (#)")
    if target.startswith(b"//"):  # a base URL that ends in a slash, before a path that begins with one
        target = b"/" + target.lstrip(b"/")
    if target.endswith(b"/") or b"/?" in target:
        target = _without_slash(target)
    request = RawRequest(method, target, headers, version == "1.1", keep_alive)
    hosts = 0
    for name, value in headers:
        if name not in _CHECKED_HEADERS:
            continue
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            request.length = int(value)
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                raise bad_request("the only supported transfer-encoding is chunked, once")
            if not request.http11:
                raise bad_request("HTTP/1.0 has no transfer-encoding; send a content-length")
            request.chunked = True
        elif name == b"traceparent":
            request.traceparent += value  # two of them are none
        elif value.lower() == b"100-continue":
            request.expects_continue = request.http11
        else:
            raise Refused(417, "the only supported expectation is 100-continue", code="expectation_failed")
    if hosts > 1 or (request.http11 and not hosts):
        raise bad_request(f"a request needs exactly one host header; this one has {hosts}")
    return request


def _without_slash(target: bytes) -> bytes:
    """The target without slashes at the end of its path."""
    path, mark, query = target.partition(b"?")
    return (path.rstrip(b"/") or b"/") + mark + query


def bad_request(message: str) -> Refused:
    """The 400 for a malformed or ambiguous request."""
    return Refused(400, message, code="bad_request")


def head_too_large() -> Refused:
    return bad_request(f"the head of the request is larger than {MAX_HEAD_BYTES} bytes; send less in headers")


def too_many_bodies() -> Refused:
    message = "the bodies of other requests take all memory that the router has for them; try again shortly"
    return Refused(503, message, code="overloaded", retry_after=1)


def too_many_connections() -> Refused:
    message = "the router has as many connections as it may have, and all are in use; try again shortly"
    return Refused(503, message, code="overloaded", retry_after=1)


def body_too_large(limit: int) -> Refused:
    return Refused(413, f"the request body is larger than the limit of {limit} bytes", code="request_too_large")
