"""Asking an engine something that no client asked for: each question on a connection of its own, with a deadline."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from blade_router.upstream import BadAnswer, Connection, UpstreamError, connect

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
    body = bytearray()
    try:
        async with asyncio.timeout(timeout), opened(url, header) as connection:
            while chunk := await connection.read():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise BadAnswer(f"more than {MOST_BYTES} bytes")
    except TimeoutError:
        raise BadAnswer(f"no answer within {timeout:g} s") from None
    return bytes(body)


@contextlib.asynccontextmanager
async def opened(url: str, header: str = "") -> AsyncIterator[Connection]:
    """A connection with the head of a 200 on it, whose body is to be read; closed afterwards.

    Raises:
        UpstreamError: no connection, no answer, or another one.
    """
    parts = urlsplit(url)
    head = f"GET {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n{header}\r\n"
    connection = await connect(parts.hostname or "", parts.port or 80, ANSWER_SECONDS)
    try:
        connection.send(head.encode("latin-1"), b"")
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.response()
        except TimeoutError:
            raise BadAnswer(f"no answer within {ANSWER_SECONDS:g} s") from None
        if connection.status != 200:
            raise Unwilling(url, connection.status)
        yield connection
    finally:
        connection.abort(ConnectionAbortedError())
