"""Clients that mean harm, or know no better: what one public address has to expect.

They come from an address of their own (all of 127.0.0.0/8 is this machine), so that what a router does to an address
hits them alone. None of them cares what it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Final

from benchmarks.router.load import crowd, request

ADDRESS: Final = ("127.0.0.66", 0)
POISON: Final = "poison0"
"""A prompt with this crashes mock engines that are told so."""
UPLOAD_BYTES: Final = 16 << 20
RETRY_SECONDS: Final = 0.5

_Attack = Callable[[], Coroutine[None, None, None]]


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=ADDRESS)


async def _forever(attack: _Attack) -> None:
    """Again and again: whoever is refused or cut comes back."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await attack()
        await asyncio.sleep(RETRY_SECONDS)


async def silent_connection(port: int) -> None:
    """Connect, and say half a line."""
    reader, writer = await _connect(port)
    try:
        writer.write(b"POST /v1/chat/comp")
        await reader.read()
    finally:
        writer.close()


async def hanging_upload(port: int) -> None:
    """Send all of a large body but its end."""
    reader, writer = await _connect(port)
    try:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        writer.write(head + b"authorization: Bearer sk-hog\r\ncontent-length: %d\r\n\r\n" % UPLOAD_BYTES)
        piece = b'{"messages":[' + b" " * (1 << 20)
        for _ in range(UPLOAD_BYTES // len(piece)):
            writer.write(piece)
            await writer.drain()
        await reader.read()
    finally:
        writer.close()


async def poison(port: int) -> None:
    """Send the request that crashes engines."""
    reader, writer = await _connect(port)
    try:
        writer.write(request(POISON, key="sk-hog")[0].replace(b"accept: */*", b"connection: close"))
        await reader.read()
    finally:
        writer.close()


async def _poison_regularly(port: int, per_second: float) -> None:
    async with asyncio.TaskGroup() as tasks:
        while True:
            tasks.create_task(_quietly(poison(port)))
            await asyncio.sleep(1 / per_second)


async def _quietly(attack: Coroutine[None, None, None]) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await attack


@contextlib.asynccontextmanager
async def flood(
    port: int, prompts: Callable[[], str], *, connections: int, uploads: int, poisons: float, streams: int, tokens: int
) -> AsyncIterator[None]:
    """All of them at once, for as long as the context lasts.

    Args:
        prompts: of the tenant ``sk-hog``, which has ``streams`` streams of ``tokens`` tokens open all the time.
        poisons: requests a second that crash the engine they reach.
    """
    tasks = [
        *(asyncio.create_task(_forever(lambda: silent_connection(port))) for _ in range(connections)),
        *(asyncio.create_task(_forever(lambda: hanging_upload(port))) for _ in range(uploads)),
        asyncio.create_task(_poison_regularly(port, poisons)),
        asyncio.create_task(_hog(port, streams, prompts, tokens)),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _hog(port: int, streams: int, prompts: Callable[[], str], tokens: int) -> None:
    await crowd(port, streams, prompts, seconds=1e9, key="sk-hog", stream=True, tokens=tokens)
