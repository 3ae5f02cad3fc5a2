"""One HTTP GET whose response may take minutes, on a connection of its own.

A thousand of them wait at the same time, each in a task that costs a few kilobytes: a pooled client would look through
all of its connections for every request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

CONNECT_TIMEOUT = 2.0
"""Seconds for the connection."""
MARGIN = 10.0
"""Seconds by which a response may come later than it was promised."""
HEAD_LIMIT = 16 << 10
BODY_LIMIT = 1 << 20


async def get(url: str, headers: Mapping[str, str], seconds: float) -> bytes:
    """The body of the response, which comes after at most ``seconds``.

    Raises:
        OSError: there is no connection, or it broke; TimeoutError is one.
        ValueError: the response is no 200, or too long.
    """
    parts = urlsplit(url)
    async with asyncio.timeout(CONNECT_TIMEOUT):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=HEAD_LIMIT)
    try:
        lines = [f"GET {parts.path}?{parts.query} HTTP/1.1", f"host: {parts.netloc}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1"))
        async with asyncio.timeout(seconds + MARGIN):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            return await reader.readexactly(_length(head))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ConnectionError(f"the response of {parts.netloc} is not whole: {error}") from error
    finally:
        writer.transport.abort()


def _length(head: list[str]) -> int:
    """The length of the body."""
    status = head[0].split(" ", 2)[1:2]
    if status != ["200"]:
        raise ValueError(f"the response is {head[0][:100]!r}, not 200")
    fields = (line.partition(":") for line in head[1:])
    length = next((int(value) for name, _, value in fields if name.lower() == "content-length"), -1)
    if not 0 <= length <= BODY_LIMIT:
        raise ValueError(f"the response has no length up to {BODY_LIMIT} bytes")
    return length
