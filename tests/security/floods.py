"""Crowds of clients, as bytes: one line for each, with how many there are of it.

They meet a router with the limits of ``LIMITS``; while they are there somebody else must be served, and the router
holds no more than it may.
"""

from dataclasses import dataclass
from typing import Any

from router_support.raw import BODY, HOST, get, post

MIB = 1 << 20
CONNECTIONS = 64
BUDGET = 4 * MIB
LIMITS: dict[str, Any] = {
    "max_connections": CONNECTIONS,
    "max_connections_per_address": CONNECTIONS // 2,
    "max_body_bytes": 3 * MIB,
    "body_budget_bytes": BUDGET,
}
START = b"POST /v1/completions HTTP/1.1\r\n" + HOST
CHUNKS = START + b"transfer-encoding: chunked\r\n\r\n"
UPLOAD = START + b"content-length: %d\r\n\r\n" % (3 * MIB)


@dataclass(frozen=True)
class Flood:
    """``number`` in ``sent`` is replaced by the client's own."""

    sent: bytes
    clients: int = 300
    hangs: bool = False
    """The engines answer nobody meanwhile: only probes can be served."""

    def of(self, client: int) -> bytes:
        return self.sent.replace(b"number", b"%06d" % client)


def chat(**fields: str) -> bytes:
    """A chat request with other fields."""
    body = BODY
    for name, value in fields.items():
        body = body.replace(b'"model": "mock"', f'"{name}": "{value}"'.encode())
    return post(body)


FLOODS: dict[str, Flood] = {
    "silent connections": Flood(b""),
    "half request lines": Flood(b"POST /v1/chat/comp"),
    "half heads": Flood(START + b"x-a: " + b"b" * 1000),
    "large half heads": Flood(START + b"x-a: " + b"b" * 100_000, 100),
    "announced uploads": Flood(UPLOAD),
    "uploads that hang after a third": Flood(UPLOAD + b"x" * MIB, 30),
    "uploads that hang before their last byte": Flood(UPLOAD + b"x" * (3 * MIB - 1), 20),
    "chunked uploads that hang": Flood(CHUNKS + b"100000\r\n" + b"x" * MIB, 30),
    "uploads behind an offer to upgrade": Flood(UPLOAD.replace(HOST, HOST + b"upgrade: h2c\r\n") + b"x" * MIB, 30),
    "clients that wait for permission": Flood(UPLOAD.replace(HOST, HOST + b"expect: 100-continue\r\n")),
    "requests that hang in engines": Flood(post(), hangs=True),
    "pipelined requests that nobody reads": Flood(get(b"/live") * 1000, 30),
    "pipelined requests that hang in engines": Flood(post() * 30, 30, hangs=True),
    "pipelined requests beyond what may wait": Flood(post() * 500, 30),
    "what is no HTTP": Flood(b"\x00\xff garbage \r\n\r\n"),
    "unknown keys": Flood(post(BODY, b"authorization: Bearer sk-number")),
    "unknown models": Flood(chat(model="model-number")),
    "users": Flood(chat(user="user-number")),
    "unknown paths": Flood(get(b"/v1/number")),
    "request ids": Flood(post(BODY, b"x-request-id: number", b"x-session-id: number")),
    "addresses that a client makes up": Flood(post(BODY, b"x-forwarded-for: 10.0.number.1")),
}
LABELS = 110
"""Labels of one metric that may come of all this."""
