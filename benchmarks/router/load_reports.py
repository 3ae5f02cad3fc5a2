"""The internal port of an engine that reports its load and its capacity, and has no prefix cache to tell of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final

from benchmarks.router.known_routes import response

EVERY: Final = 0.05
"""Seconds between reports, as engines collect what changed."""
_STATE: Final = {"model": "mock", "revision": "r", "ready": True, "draining": False, "epoch": "e", "sequence": 0}
_TOTALS: Final = dict.fromkeys(
    ("prompt_tokens_total", "cached_tokens_total", "generation_tokens_total", "preemptions_total"), 0
)
_BLOCKS: Final = {"kv_blocks_total": 1 << 16, "kv_blocks_free": 1 << 16}


class LoadReporter:
    """The internal routes of one engine.

    Args:
        load: returns how many requests run, how many wait, and how many can run.
    """

    def __init__(self, load: Callable[[], tuple[int, int, int]]) -> None:
        self._load = load
        self._subscribers: set[asyncio.Transport] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._reported: tuple[int, int, int] | None = None

    def respond(self, path: bytes, transport: asyncio.Transport) -> bool:
        """Serve one of the routes; False when it is none."""
        if path == b"/internal/state":
            transport.write(response(200, json.dumps(self._state()).encode()))
        elif path == b"/internal/events":
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            transport.write(head + self._event())
            self._subscribers.add(transport)
            if self._timer is None:
                self._publish()
        elif path == b"/internal/kv":
            transport.write(response(404, b"{}"))
        else:
            return False
        return True

    def _publish(self) -> None:
        self._subscribers = {transport for transport in self._subscribers if not transport.is_closing()}
        self._timer = asyncio.get_running_loop().call_later(EVERY, self._publish) if self._subscribers else None
        if self._load() != self._reported:
            self._reported = self._load()
            event = self._event()
            for transport in self._subscribers:
                transport.write(event)

    def _state(self) -> dict[str, object]:
        running, waiting, slots = self._load()
        return {**_STATE, **_TOTALS, **_BLOCKS, "running": running, "waiting": waiting, "max_running": slots}

    def _event(self) -> bytes:
        event = b"data: %b\n\n" % json.dumps(self._state()).encode()
        return b"%x\r\n%b\r\n" % (len(event), event)
