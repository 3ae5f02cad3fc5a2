"""The internal port of our engines: state, KV events, and a snapshot of the prefix cache."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable

from benchmarks.router.known_routes import response

HEADER = b"x-blade-kv-blocks"
STRIDE = 4
"""KV blocks of 16 tokens for each block of text that the mock caches."""
EVERY = 0.05
"""Seconds between events, as engines collect what changed."""
_STATE: dict[str, object] = {
    "model": "mock",
    "revision": "",
    "ready": True,
    "draining": False,
    "running": 0,
    "waiting": 0,
    "prompt_tokens_total": 0,
    "cached_tokens_total": 0,
    "generation_tokens_total": 0,
    "preemptions_total": 0,
    "epoch": "e",
}


def digest(block: int) -> bytes:
    """The digest of a block on the wire."""
    return (block & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")


def hashes_header(blocks: Iterable[int]) -> bytes:
    """The header line with a prompt's block hashes."""
    return b"%b: %d:%b\r\n" % (HEADER, STRIDE, base64.b64encode(b"".join(map(digest, blocks))))


class KvEventPublisher:
    """The internal port's routes of one engine."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._sequence = 0
        self._cached: set[int] = set()
        self._stored: set[int] = set()
        self._removed: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.subscribers: set[asyncio.Transport] = set()

    def change(self, stored: Iterable[int], removed: Iterable[int]) -> None:
        """Change the cache; an event is published soon."""
        for block in stored:
            self._cached.add(block)
            self._stored.add(block)
            self._removed.discard(block)
        for block in removed:
            self._cached.discard(block)
            self._removed.add(block)
            self._stored.discard(block)
        if self._timer is None and (self._stored or self._removed):
            self._timer = asyncio.get_running_loop().call_later(EVERY, self._publish)

    def respond(self, path: bytes, transport: asyncio.Transport) -> bool:
        """Serve one of the routes; False when it is none."""
        if path == b"/internal/events":
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            transport.write(head + self._event({"sequence": self._sequence}))
            self.subscribers.add(transport)
        elif path == b"/internal/kv":
            snapshot = {"epoch": "e", "sequence": self._sequence, "digests": _text(self._cached | self._removed)}
            transport.write(response(200, json.dumps(snapshot).encode()))
        elif path == b"/internal/state":
            transport.write(response(200, json.dumps(self._state()).encode()))
        else:
            return False
        return True

    def _publish(self) -> None:
        self._timer = None
        self._sequence += 1
        batch = {"sequence": self._sequence, "stored": _text(self._stored), "removed": _text(self._removed)}
        self._stored.clear()
        self._removed.clear()
        event = self._event(batch)
        self.subscribers = {transport for transport in self.subscribers if not transport.is_closing()}
        for transport in self.subscribers:
            transport.write(event)

    def _state(self) -> dict[str, object]:
        free = self._blocks - len(self._cached)
        sizes = {"kv_blocks_total": self._blocks * STRIDE, "kv_blocks_free": free * STRIDE}
        return {**_STATE, **sizes, "sequence": self._sequence}

    def _event(self, batch: dict[str, object]) -> bytes:
        event = b"data: %b\n\n" % json.dumps({**self._state(), "kv": batch}).encode()
        return b"%x\r\n%b\r\n" % (len(event), event)


def _text(blocks: Iterable[int]) -> str:
    return base64.b64encode(b"".join(map(digest, blocks))).decode("ascii")
