"""Clients that take their time, as bytes: one line for each, with what must happen to it.

They meet a router with the limits of ``LIMITS``, which is quick to lose its patience.
"""

from dataclasses import dataclass
from typing import Any

from router_support.raw import BODY, HOST, chunked, get, post

LIMITS: dict[str, Any] = {
    "header_timeout": 0.15,
    "body_timeout": 0.15,
    "body_deadline": 0.6,
    "min_body_rate": 4000,
}
KEEP_ALIVE = 0.3
"""Seconds between two requests."""
DROP = 0.02
"""Seconds between two drops."""
START = b"POST /v1/completions HTTP/1.1\r\n" + HOST
UPLOAD = START + b"content-length: 1000000\r\n\r\n"
CHUNKS = START + b"transfer-encoding: chunked\r\n\r\n"
UPGRADE = HOST + b"connection: upgrade\r\nupgrade: h2c\r\n"
STREAM = post(BODY[:-1] + b', "stream": true}')


@dataclass(frozen=True)
class Slow:
    """``sent`` comes at once; then the drops, one after the other and again from the first."""

    sent: bytes
    drops: tuple[bytes, ...] = ()
    statuses: tuple[int, ...] = (408,)
    """What it is answered, in this order; then the connection ends."""


def in_bytes(text: bytes) -> tuple[bytes, ...]:
    return tuple(bytes((byte,)) for byte in text)


SLOW: dict[str, Slow] = {
    "not a word": Slow(b"", statuses=()),
    "empty lines, one by one": Slow(b"", (b"\r\n",), ()),
    "one byte": Slow(b"P"),
    "half a request line": Slow(b"POST /v1/compl"),
    "half a head": Slow(START + b"x-a: 1\r\n"),
    "a head without its last line": Slow(START),
    "a head byte by byte": Slow(b"", in_bytes(START + b"x-a: " + b"b" * 1000)),
    "a head line by line": Slow(START, (b"x-a: b\r\n",)),
    "a target byte by byte": Slow(b"GET /", (b"a",)),
    "half a greeting of TLS, as HTTP": Slow(b"\x16\x03\x01", statuses=(400,)),
    "a head and no body": Slow(UPLOAD),
    "half a body": Slow(UPLOAD + b"x" * 500_000),
    "a body byte by byte": Slow(UPLOAD, (b"x",)),
    "a body below the minimum rate": Slow(UPLOAD, (b"x" * 40,)),
    "a body that ends after the deadline": Slow(UPLOAD, (b"x" * 400,)),
    "a body below the minimum rate after a good start": Slow(UPLOAD + b"x" * 400, (b"x" * 10,)),
    "no chunk": Slow(CHUNKS),
    "half a chunk": Slow(CHUNKS + b"a\r\nxxx"),
    "a chunk's size digit by digit": Slow(CHUNKS, (b"0",)),
    "chunks of a byte": Slow(CHUNKS, (b"1\r\nx\r\n",)),
    "a chunk's extension byte by byte": Slow(CHUNKS + b"1;", (b"x",)),
    "chunks without the last one": Slow(chunked(BODY)[:-5]),
    "trailers line by line": Slow(CHUNKS + b"2\r\n{}\r\n0\r\n", (b"x-a: b\r\n",)),
    "the body behind an offer to upgrade": Slow(UPLOAD.replace(HOST, UPGRADE), (b"x",)),
    "chunks behind an offer to upgrade": Slow(CHUNKS.replace(HOST, UPGRADE), (b"1\r\nx\r\n",)),
    "one that waits for permission, and then for more": Slow(
        UPLOAD.replace(HOST, HOST + b"expect: 100-continue\r\n"), statuses=(100, 408)
    ),
    "half of a second request": Slow(post() + b"GET /v1/mod", statuses=(200, 408)),
    "half of a second body": Slow(post() + UPLOAD + b"{", statuses=(200, 408)),
    "nothing after a request": Slow(post(), statuses=(200,)),
    "a second request byte by byte": Slow(get(b"/live"), in_bytes(START + b"x-a: " + b"b" * 1000), (200, 408)),
}

DEAF: dict[str, bytes] = {
    "a stream": STREAM,
    "a large response": post(),
    "streams in a row": STREAM * 10,
    "more requests than may wait": post() * 1000,
    "a stream, and then what is no request": STREAM + b"garbage\r\n\r\n",
    "a stream, and then an upload": STREAM + UPLOAD + b"x" * 900_000,
}
"""What clients request that read nothing of it: they are dropped, and engines stop working for them."""
