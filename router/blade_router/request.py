"""A client's request: read with a limit, parsed once, and its head made ready for an engine.

The body is forwarded as the bytes that came.
"""

import itertools
import secrets
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from blade_protocol import headers as names
from blade_router.errors import ClientGone, Headers, Refused
from blade_router.fields import NOTHING, RoutingFields, parse_fields
from blade_router.usage import Usage

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

METHODS = ("GET", "POST", "DELETE")

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Headers that speak about one connection (RFC 9110 section 7.6.1)."""
REQUEST_ID = names.REQUEST_ID.encode()
OURS = names.CLIENT_FORBIDDEN_PREFIX.encode()
# host, content-length and the request's id are written anew; "expect" is answered by our own server
_REPLACED = HOP_BY_HOP | {b"host", b"content-length", b"expect", REQUEST_ID}

_NOT_FORWARDED = HOP_BY_HOP | {REQUEST_ID}
_MEASURED = _NOT_FORWARDED | {b"content-length"}

_prefix = secrets.token_hex(8)
_counter = itertools.count()


@dataclass(slots=True)
class ClientRequest:
    """What limits and policies may look at, and what goes to the engine."""

    method: str
    path: str
    fields: RoutingFields
    body: bytes
    id: bytes
    headers: Headers = field(default_factory=list)
    """As the client sent them, names in lower case."""
    _start: bytes = b""
    _end: bytes = b""
    usage: Usage | None = None
    """What its answer said it used; known when it has ended."""
    status: int = 0
    """Of the answer it gets; 0 until then."""
    events: int = 0
    """Events of its answer that were passed on: about as many tokens."""

    def header(self, name: bytes) -> bytes:
        """The first of that name, empty without one."""
        return next((value for key, value in self.headers if key == name), b"")

    def withhold(self, names: Collection[bytes]) -> None:
        """Headers of these names are not for engines."""
        for name, value in self.headers:
            if name in names:
                self._end = self._end.replace(b"\r\n%b: %b\r\n" % (name, value), b"\r\n", 1)

    def head_for(self, authority: bytes, extra: bytes = b"") -> bytes:
        """Request line and headers for the engine at ``authority`` (``host:port``).

        ``extra`` are further header lines, each with its line end.
        """
        length = b"content-length: %d\r\n%b: %b\r\n%b\r\n" % (len(self.body), REQUEST_ID, self.id, extra)
        return b"".join((self._start, authority, self._end, length))


async def read_request(scope: Scope, receive: Receive, max_body_bytes: int) -> ClientRequest:
    """Read the whole request.

    Raises:
        Refused: 405 for another method, 413 for a body over the limit, 400 for a body that is not JSON.
        ClientGone: the client left before its body was complete.
    """
    method: str = scope["method"]
    if method not in METHODS:
        raise Refused(405, f"{method} is not supported; use one of {', '.join(METHODS)}", code="method_not_allowed")

    head: list[bytes] = []
    request_id = b""
    content_type = b""
    dropped = _REPLACED
    for name, value in scope["headers"]:
        if name == b"connection":
            dropped = dropped | {token.strip() for token in value.lower().split(b",")}
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > max_body_bytes:
            raise _too_large(max_body_bytes)
        if name == REQUEST_ID and len(value) <= 128:
            request_id = value
        if name in dropped or name.startswith(OURS):
            continue
        if name == b"content-type":
            content_type = value
        head += (name, b": ", value, b"\r\n")

    body = await _read_body(receive, max_body_bytes)
    fields = NOTHING
    if method == "POST" and (not content_type or content_type.lower().startswith(b"application/json")):
        fields = parse_fields(body)

    request_id = request_id or b"req-%b%x" % (_prefix.encode(), next(_counter))
    target = scope["raw_path"]
    if scope["query_string"]:
        target = target + b"?" + scope["query_string"]
    return ClientRequest(
        method=method,
        path=scope["path"],
        fields=fields,
        body=body,
        id=request_id,
        headers=scope["headers"],
        _start=b"%b %b HTTP/1.1\r\nhost: " % (method.encode(), target),
        _end=b"\r\n" + b"".join(head),
    )


async def _read_body(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return b"".join((*parts, part)) if parts else part
        parts.append(part)


def _too_large(limit: int) -> Refused:
    return Refused(413, f"the request body is larger than the limit of {limit} bytes", code="request_too_large")


def forwardable(upstream: Headers, length: int | None) -> Headers:
    """An answer's headers without those about the connection and without those the router writes itself.

    ``length`` is the size of the body where all of it is there, and replaces what the engine announced.
    """
    if length is None:
        return [header for header in upstream if header[0] not in _NOT_FORWARDED and not header[0].startswith(OURS)]
    headers = [header for header in upstream if header[0] not in _MEASURED and not header[0].startswith(OURS)]
    headers.append((b"content-length", b"%d" % length))
    return headers
