"""Asking an engine something that no client asked for: each question on a connection of its own, with a deadline."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from blade_router.upstream import Connection, connect
from blade_router.upstream_errors import BadAnswer, UpstreamError

ANSWER_SECONDS = 2.0
MOST_BYTES = 64 << 20
"""Of one answer: whatever claims to be an engine does not fill our memory."""


class Unwilling(UpstreamError):
    """The engine answered, but not with 200; ``status`` says with what."""

    reason = "status"

    def __init__(self, url: str, status: int) -> None:
        super().__init__(f"{urlsplit(url).path} answered {status}")
        self.status = status


async def get(url: str, header: str = "", timeout: float = ANSWER_SECONDS) -> bytes:
    """The body of a 200.

    Args:
        header: further header lines, each with its line end.
        timeout: seconds for all of it.

    Raises:
        UpstreamError: no answer in time, or another one.
    """
    try:
        async with asyncio.timeout(timeout), opened(url, header) as connection:
            return await body_of(connection, MOST_BYTES)
    except TimeoutError:
        raise BadAnswer(f"no answer within {timeout:g} s") from None


@contextlib.asynccontextmanager
async def opened(url: str, header: str = "") -> AsyncIterator[Connection]:
    """A connection with the head of a 200 on it, whose body is to be read; closed afterwards.

    Raises:
        UpstreamError: no connection, no answer, or another one.
    """
    parts = urlsplit(url)
    connection = await connect(parts.hostname or "", parts.port or 80, ANSWER_SECONDS)
    try:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await ask(connection, parts.netloc.encode("latin-1"), parts.path, header)
        except TimeoutError:
            raise BadAnswer(f"no answer within {ANSWER_SECONDS:g} s") from None
        if connection.status != 200:
            raise Unwilling(url, connection.status)
        yield connection
    finally:
        connection.abort(ConnectionAbortedError())


async def ask(connection: Connection, authority: bytes, path: str, header: str = "") -> None:
    """Send a GET and wait for status and headers. The connection is good for nothing else, and the caller's to drop.

    Raises:
        UpstreamError: no answer.
    """
    head = b"GET %b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n%b\r\n"
    connection.send(head % (path.encode("latin-1"), authority, header.encode("latin-1")), b"")
    await connection.response()


async def body_of(connection: Connection, most: int) -> bytes:
    """The rest of an answer, after its head.

    Raises:
        UpstreamError: it broke off, or is longer than ``most`` bytes.
    """
    body = bytearray()
    while chunk := await connection.read():
        body += chunk
        if len(body) > most:
            raise BadAnswer(f"more than {most} bytes")
    return bytes(body)
