"""An engine that answers each request with the bytes of a script, and says that it is well."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Self

from blade_protocol.routing import EndpointConfig
from router_support.engine import MockEngine
from router_support.serving import Running, eventually, serving

Script = Callable[[], Iterator[bytes]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
WHOLE = HEAD + b"content-length: 2\r\n\r\n{}"
RESET = b"(reset)"
STAY = b"(stay open)"
THINK = b"(think)"
"""Pieces of a script that are no bytes to send. A script that ends closes the connection."""


class BadEngine:
    """An engine that passes health checks and plays a script to each request."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.name = "bad"
        self.url = ""
        self.requests = 0
        self.sent = 0
        self.open = 0
        self._stop = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        self._stop.set()
        await eventually(lambda: not self.open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._respond(reader, writer)
        finally:
            self.open -= 1
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /health "):
            writer.write(WHOLE)
            return
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        await reader.readexactly(int(lengths[0]))
        self.requests += 1
        gone = asyncio.ensure_future(reader.read())
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            for piece in self.script():
                if gone.done() or piece == RESET:
                    writer.transport.abort()
                    return
                if piece == STAY:
                    await asyncio.wait((gone, stop), return_when=asyncio.FIRST_COMPLETED)
                    return
                if piece == THINK:
                    await asyncio.sleep(0.2)  # four times the limit of the test that uses it
                    continue
                writer.write(piece)
                self.sent += len(piece)
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            stop.cancel()
            if not gone.done():
                gone.cancel()
            await asyncio.gather(gone, stop, return_exceptions=True)


def plays(*pieces: bytes) -> Script:
    return lambda: iter(pieces)


def endless(start: bytes, again: bytes) -> Script:
    return lambda: itertools.chain((start,), itertools.repeat(again))


@contextlib.asynccontextmanager
async def routed(script: Script, *others: MockEngine) -> AsyncIterator[tuple[Running, BadEngine]]:
    async with BadEngine(script) as bad:
        endpoints = tuple(EndpointConfig(url=engine.url, name=engine.name) for engine in (bad, *others))
        async with serving(wait=False, endpoints=endpoints) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == len(endpoints))
            yield router, bad
            await eventually(lambda: not any(endpoint.in_flight for endpoint in router.router.endpoints.all))
            assert router.router.metrics.in_flight == 0
