"""What engines answer that lie, as bytes: one line for each lie, with what the client must see of it.

A new version of the HTTP parser is judged by these.
"""

from router_support.bad_engine import CHUNKED, EVENTS, HEAD, RESET, STAY, WHOLE, Script, endless, plays
from router_support.engine import chunk

INVALID: dict[str, Script] = {
    "bytes that are not HTTP": plays(bytes(range(256)) * 10),
    "another protocol": plays(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", STAY),
    "a line end too few": plays(b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}"),
    "a folded header": plays(HEAD + b"x-a: b\r\n evil: 1\r\ncontent-length: 2\r\n\r\n{}"),
    "a space in a header's name": plays(HEAD + b"x a: b\r\ncontent-length: 2\r\n\r\n{}"),
    "two lengths": plays(HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
    "length and chunks": plays(HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    "a length that is none": plays(HEAD + b"content-length: -2\r\n\r\n{}"),
    "a length beyond 64 bits": plays(HEAD + b"content-length: 99999999999999999999\r\n\r\n{}"),
    "a chunk's size beyond 64 bits": plays(CHUNKED + b"fffffffffffffffff\r\n{}", STAY),
    "a chunk's size that is none": plays(CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n", STAY),
    "status 999": plays(b"HTTP/1.1 999 What\r\ncontent-length: 2\r\n\r\n{}", STAY),
    "status 000": plays(b"HTTP/1.1 000 What\r\ncontent-length: 2\r\n\r\n{}", STAY),
    "another protocol proposed": plays(b"HTTP/1.1 101 Up\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nhello", STAY),
    "an endless head": endless(HEAD, b"x-header: %s\r\n" % (b"y" * 1000)),
    "an endless header": endless(HEAD + b"x-header: ", b"y" * 1000),
    "an endless status line": endless(b"HTTP/1.1 200 ", b"y" * 1000),
    "endless interim responses": endless(b"", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
    "endless chunk extensions": endless(CHUNKED + b"2;x=", b"y" * 1000),
    "endless trailers": endless(CHUNKED + b"0\r\n", b"x-sum: %s\r\n" % (b"y" * 1000)),
    "an endless trailer": endless(CHUNKED + b"0\r\nx-sum: ", b"y" * 1000),
    "a NUL in a header's value": plays(HEAD + b"x-a: a\0b\r\ncontent-length: 2\r\n\r\n{}"),
    "a bare CR in a header's value": plays(HEAD + b"x-a: a\rlocation: /b\r\ncontent-length: 2\r\n\r\n{}"),
    "a bare LF in a header's value": plays(HEAD + b"x-a\n: b\r\ncontent-length: 2\r\n\r\n{}"),
    "a chunk longer than its size": plays(CHUNKED + b"2\r\n{}{}\r\n0\r\n\r\n", STAY),
}
"""No responses: the request goes to another engine, and without one the client must see a 503."""

LOST: dict[str, Script] = {
    "the end in the head": plays(HEAD),
    "nothing": plays(),
    "a reset in the head": plays(HEAD, RESET),
    "a body shorter than its length": plays(HEAD + b"content-length: 20\r\n\r\n{}"),
    "chunks without a last one": plays(CHUNKED + b"2\r\n{}\r\n"),
    "the end inside a chunk": plays(CHUNKED + b"14\r\n{}"),
    "an event stream without an event, cut": plays(EVENTS + b"14\r\ndata: {"),
}
"""Connections that end before a response does: the same, but without another engine the client must see a 502."""

WHOLE_RESPONSES: dict[str, tuple[Script, int, bytes]] = {
    "no length, until it closes": (plays(HEAD + b"connection: close\r\n\r\n", b'{"a":', b"1}"), 200, b'{"a":1}'),
    "HTTP/1.0": (plays(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{}"), 200, b"{}"),
    "single bytes": (lambda: (bytes((byte,)) for byte in CHUNKED + b"2\r\n{}\r\n0\r\n\r\n"), 200, b"{}"),
    "chunks of one byte": (plays(CHUNKED + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n"), 200, b"x" * 5000),
    "chunk extensions": (plays(CHUNKED + b'2;a="b"\r\n{}\r\n0\r\n\r\n'), 200, b"{}"),
    "trailers": (plays(CHUNKED + b"2\r\n{}\r\n0\r\nx-sum: 1\r\nx-blade-a: 1\r\n\r\n"), 200, b"{}"),
    "a body longer than its length": (plays(HEAD + b"content-length: 2\r\n\r\n{}{}{}"), 200, b"{}"),
    "two responses": (plays(WHOLE + WHOLE), 200, b"{}"),
    "interim responses": (plays(b"HTTP/1.1 103 Early Hints\r\nx-a: 1\r\n\r\n" * 20 + WHOLE), 200, b"{}"),
    "204 with a length": (plays(b"HTTP/1.1 204 No\r\ncontent-length: 5\r\n\r\n"), 204, b""),
    "204 with a body": (plays(b"HTTP/1.1 204 No\r\ncontent-length: 5\r\n\r\nhello"), 204, b""),
    "204 with chunks": (plays(b"HTTP/1.1 204 No\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"), 204, b""),
    "304 with a length": (plays(b"HTTP/1.1 304 Same\r\ncontent-length: 5\r\netag: a\r\n\r\n"), 304, b""),
    "status 599": (plays(b"HTTP/1.1 599 What\r\ncontent-length: 2\r\n\r\n{}"), 599, b"{}"),
    "an offer to upgrade": (
        plays(HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\n{}"),
        200,
        b"{}",
    ),
}
"""Unusual responses, and the status and body that the client must see."""

BROKEN_STREAMS: dict[str, tuple[bytes, ...]] = {
    "cut": (chunk(b"data: 1\n\n") + b"99\r\ndata: 2",),
    "reset": (chunk(b"data: 1\n\n"), RESET),
    "garbage for a chunk": (chunk(b"data: 1\n\n"), b"garbage\r\n"),
    "endless trailers": (chunk(b"data: 1\n\n") + b"0\r\n", b"x-sum: 1\r\n" * 20_000, STAY),
}
"""Streams that break after their first event, which the client must see, and then one error event."""

LYING_HEADERS: dict[str, tuple[bytes, set[str]]] = {
    "an address of its own": (b"location: http://10.0.0.1:8000/v1/models", {"location"}),
    "an address of its own, by another name": (b"Content-Location: //10.0.0.1/", {"content-location"}),
    "another address after a while": (b"refresh: 0; url=http://10.0.0.1:8000/", {"refresh"}),
    "another server for the same address": (b'alt-svc: h2="10.0.0.1:8000"; ma=99999', {"alt-svc"}),
    "headers of one connection": (b"connection: x-hop, X-Other\r\nx-hop: 1\r\nx-other: 2", {"x-hop", "x-other"}),
    "several lists of them": (b"connection: keep-alive\r\nconnection: x-hop\r\nx-hop: 1", {"x-hop"}),
    "a list of them with holes": (b"connection: ,x-hop,,close\r\nx-hop: 1", {"x-hop"}),
    "its length among them": (b"connection: content-length, content-type", {"content-type"}),
    "how long to keep it": (b"keep-alive: timeout=99999\r\nproxy-connection: keep-alive", {"keep-alive"}),
    "headers of a proxy": (b"proxy-authenticate: Basic\r\ntrailer: x-a\r\nte: trailers", {"proxy-authenticate", "te"}),
    "headers of the router": (b"x-blade-endpoint: a\r\nx-blade-internal-token: b", {"x-blade-internal-token"}),
    "who may read it": (b"access-control-allow-origin: *", {"access-control-allow-origin"}),
}
"""Headers of a response ``{}``, and those of them that the client must not see."""

REDIRECTS: dict[str, bytes] = {
    "of a path with a slash": b"307 Temporary Redirect",
    "for good": b"308 Permanent Redirect",
    "for good, of old": b"301 Moved Permanently",
    "found elsewhere": b"302 Found",
    "to a page": b"303 See Other",
    "to a proxy": b"305 Use Proxy",
    "to many": b"300 Multiple Choices",
}
"""Statuses of redirects: the client must see a 502 of the router, and no address."""
