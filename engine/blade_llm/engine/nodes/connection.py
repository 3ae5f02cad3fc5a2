"""One TCP connection between two machines: whole messages in, whole messages out, and when the other was last heard."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass
from typing import Final

import msgspec

from blade_llm.engine.nodes.messages import MAX_BYTES, NodeMessage, decode, encode

_LENGTH_BYTES: Final = 4


class GoneError(Exception):
    """The other side closed the connection, or sends what is no message."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of a link, in seconds."""

    beat: float = 0.5
    """Between two signs of life."""
    silence: float = 3.0
    """After so long without one the other machine counts as lost."""
    loading_silence: float = 30.0
    """The same until all ranks are ready: while libraries are loaded, other threads of a process do not run."""
    join: float = 10.0
    """What connects has so long to say which machine it is."""


class Connection:
    """Used by one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.heard = time.monotonic()
        """When the last message came."""
        sock = writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def peer(self) -> str:
        """The other side's address."""
        name = self._writer.get_extra_info("peername")
        return str(name[0]) if name else "unknown"

    def send(self, message: NodeMessage) -> None:
        """Never waits: a side that takes nothing is silent, too, and soon lost."""
        payload = encode(message)
        if not self._writer.is_closing():
            self._writer.write(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)

    async def receive(self, most_bytes: int = MAX_BYTES) -> NodeMessage:
        """The next message. Raises :class:`GoneError`."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            if length > most_bytes:
                raise GoneError(f"a message of {length} bytes")
            message = decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            raise GoneError("the connection was closed") from None
        except msgspec.DecodeError as error:
            raise GoneError(f"no message of this protocol: {error}") from None
        self.heard = time.monotonic()
        return message

    async def close(self, seconds: float = 1.0) -> None:
        """Send what is to be sent, for ``seconds`` at most, and close."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                await self._writer.drain()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                self._writer.close()
                await self._writer.wait_closed()
        self._writer.transport.abort()


class Ticker:
    """Wakes every ``seconds``, and tells how long this process itself did not run: in that time nobody was silent."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    async def tick(self) -> float:
        """Wait, and return the seconds that the wait took too long."""
        await asyncio.sleep(self._seconds)
        now = time.monotonic()
        late, self._last = now - self._last - self._seconds, now
        return max(0.0, late)
