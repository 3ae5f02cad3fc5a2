"""An HTTP server of which a test writes every byte."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

Respond = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawServer:
    port: int
    requests: list[str] = field(default_factory=list)
    """Heads of requests."""
    connections: int = 0
    open: int = 0
    """Connections whose response has not ended."""
    closed_by_peer: int = 0
    """Responses that the client broke off."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/picture.png"

    def changed(self) -> None:
        self._changed.set()

    async def until_open(self, count: int) -> None:
        """Until exactly ``count`` connections are open, and their requests have come."""
        while self.open != count or len(self.requests) < count:
            self._changed.clear()
            await self._changed.wait()


@contextlib.asynccontextmanager
async def serving(
    respond: Respond, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawServer]:
    """``respond`` writes what follows each request's head. The connection is closed after it, or when the client is
    gone."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        server.open += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            server.requests.append(head.decode("latin-1"))
            server.changed()
            responding = asyncio.ensure_future(respond(writer))
            gone = asyncio.ensure_future(reader.read(1))
            await asyncio.wait({responding, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not responding.done() or isinstance(responding.exception(), ConnectionError):
                server.closed_by_peer += 1
            for task in (responding, gone):
                task.cancel()
            await asyncio.gather(responding, gone, return_exceptions=True)
        except (ConnectionError, asyncio.IncompleteReadError):
            server.closed_by_peer += 1
        finally:
            server.open -= 1
            server.changed()
            writer.transport.abort() if writer.transport.get_write_buffer_size() == 0 else writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(connected(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    listener = await asyncio.start_server(accept, host, 0, ssl=tls, backlog=2048)
    server = RawServer(listener.sockets[0].getsockname()[1])
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answering(*parts: bytes) -> Respond:
    """Writes ``parts`` and is done."""

    async def respond(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
        await writer.drain()

    return respond


def ok(body: bytes, *headers: str) -> Respond:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""]
    return answering("\r\n".join(lines).encode(), body)


def redirect(location: str, status: int = 302) -> Respond:
    return answering(f"HTTP/1.1 {status} Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
