"""How a new engine process gets its :class:`EngineStart`: length and msgpack on standard input, which stays open."""

from __future__ import annotations

import os
from typing import IO, Final

import msgspec

from blade_llm.engine.messages import EngineStart

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""Of both processes."""
_LENGTH_BYTES: Final = 4


def write_start(stream: IO[bytes], start: EngineStart) -> None:
    """Send ``start`` to a new engine process and leave ``stream`` open."""
    payload = msgspec.msgpack.encode(start)
    stream.write(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
    stream.flush()


def read_start(descriptor: int) -> EngineStart | None:
    """Read what :func:`write_start` sent, unbuffered. None when the parent is already gone."""
    data = b""
    while len(data) < _LENGTH_BYTES or len(data) < _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big"):
        chunk = os.read(descriptor, 65536)
        if not chunk:
            return None
        data += chunk
    return msgspec.msgpack.decode(data[_LENGTH_BYTES:], type=EngineStart)
