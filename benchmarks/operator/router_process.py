"""A process that is the routers of all services: it says what each would, on a socket, and is told the engines."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

import msgspec

from benchmarks.operator.scaled_service import Load
from blade_protocol import headers

_TOKEN = headers.INTERNAL_TOKEN.lower().encode() + b": "


@contextmanager
def router_process(loads: dict[str, Load], engines: dict[str, int], offset: float) -> Iterator[int]:
    """The port of the process. ``loads`` and ``engines`` by service; ``offset``: of Unix time from `time.monotonic`."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(theirs, loads, engines, offset), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(connection: Connection, loads: dict[str, Load], engines: dict[str, int], offset: float) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                # The token is the service's, so it says who is asked.
                name = head[head.lower().index(_TOKEN) + len(_TOKEN) :].split(b"\r\n", 1)[0].decode()
                body = msgspec.json.encode(loads[name].signals(time.monotonic() + offset, engines[name]))
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(body), body)
                )
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(respond, "127.0.0.1", 0, backlog=4096)
        connection.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())
