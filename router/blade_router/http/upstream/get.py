"""Queries to an engine that no client asked for: each GET on a connection of its own, with a deadline."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from blade_router.http.upstream.connect import connect
from blade_router.http.upstream.connection import Connection
from blade_router.http.upstream.errors import BadResponse, UnexpectedStatus

RESPONSE_SECONDS = 2.0
MAX_BYTES = 64 << 20
"""Limit of one response: whatever claims to be an engine does not fill our memory."""


async def get(url: str, header: str = "", timeout: float = RESPONSE_SECONDS) -> bytes:
    """Send a GET and return the body of a 200.

    Args:
        header: further header lines, each with its line end.
        timeout: seconds for all of it.

    Raises:
        UpstreamError: no response in time, or another status.
    """
    try:
        async with asyncio.timeout(timeout), open_get(url, header) as connection:
            return await read_body(connection, MAX_BYTES)
    except TimeoutError:
        raise BadResponse(f"no response within {timeout:g} s") from None


@contextlib.asynccontextmanager
async def open_get(url: str, header: str = "") -> AsyncIterator[Connection]:
    """Send a GET; yields the connection after the head of a 200, its body still to be read, and closes it afterwards.

    Raises:
        UpstreamError: no connection, no response, or another status.
    """
    parts = urlsplit(url)
    connection = await connect(parts.hostname or "", parts.port or 80, RESPONSE_SECONDS)
    try:
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                await send_get(connection, parts.netloc.encode("latin-1"), parts.path, header)
        except TimeoutError:
            raise BadResponse(f"no response within {RESPONSE_SECONDS:g} s") from None
        if connection.status != 200:
            raise UnexpectedStatus(url, connection.status)
        yield connection
    finally:
        connection.abort(ConnectionAbortedError())


async def send_get(connection: Connection, authority: bytes, path: str, header: str = "") -> None:
    """Send a GET and wait for status and headers. The connection cannot be reused; the caller closes it.

    Raises:
        UpstreamError: no response.
    """
    head = b"GET %b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n%b\r\n"
    connection.send(head % (path.encode("latin-1"), authority, header.encode("latin-1")), b"")
    await connection.response()


async def read_body(connection: Connection, limit: int) -> bytes:
    """Read the body of a response.

    Raises:
        UpstreamError: it broke off, or is longer than ``limit`` bytes.
    """
    body = bytearray()
    while chunk := await connection.read():
        body += chunk
        if len(body) > limit:
            raise BadResponse(f"more than {limit} bytes")
    return bytes(body)
