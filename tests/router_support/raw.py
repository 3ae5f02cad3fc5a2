"""A raw HTTP client: sends exactly the bytes of a test, and reads responses one by one."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

BODY = b'{"model": "mock", "messages": [{"role": "user", "content": "hello"}]}'
HOST = b"host: router\r\n"


@dataclass
class Response:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    version: str = "HTTP/1.1"

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def error(self) -> dict[str, Any]:
        """The OpenAI error in it."""
        found: dict[str, Any] = json.loads(self.body)["error"]
        assert {"message", "type", "code", "param"} <= found.keys()
        return found


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, **options: Any) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port, **options))

    def send(self, *parts: bytes) -> None:
        """Send each part in a segment of its own, as far as the kernel allows."""
        for part in parts:
            self.writer.write(part)

    async def send_slowly(self, parts: Sequence[bytes]) -> None:
        """Let the other side read each part before the next one comes; less, when it closes the connection."""
        for part in parts:
            self.writer.write(part)
            with contextlib.suppress(ConnectionError):
                await self.writer.drain()
            for _ in range(3):
                await asyncio.sleep(0)

    async def response(self, *, bodiless: bool = False) -> Response:
        """The next response; fails when the connection ends before it does."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status, _ = head[0].split(" ", 2)
        headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in head[1:] if line)]
        found = Response(int(status), headers, b"", version)
        if bodiless or found.status < 200 or found.status in (204, 304):
            return found
        length = found.header("content-length")
        if length is not None:
            found.body = await self.reader.readexactly(int(length))
        elif found.header("transfer-encoding") == "chunked":
            while size := int(await self.reader.readline(), 16):
                found.body += await self.reader.readexactly(size)
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readexactly(2) == b"\r\n"
        else:
            found.body = await self.reader.read()
        return found

    async def closed(self) -> bytes:
        """The bytes that still come until the other side closes."""
        with contextlib.suppress(ConnectionError):
            return await self.reader.read()
        return b""


@contextlib.asynccontextmanager
async def connected(port: int, **options: Any) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(port, **options)
    try:
        yield client
    finally:
        client.writer.close()
        with contextlib.suppress(ConnectionError, OSError):
            await client.writer.wait_closed()


def post(body: bytes = BODY, *headers: bytes, path: bytes = b"/v1/chat/completions", version: bytes = b"1.1") -> bytes:
    """A request with a Content-Length."""
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"POST %b HTTP/%b\r\n%b%bcontent-length: %d\r\n\r\n%b" % (path, version, HOST, lines, len(body), body)


def get(path: bytes = b"/v1/models", *headers: bytes, version: bytes = b"1.1", method: bytes = b"GET") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"%b %b HTTP/%b\r\n%b%b\r\n" % (method, path, version, HOST, lines)


def chunked(*chunks: bytes, trailer: bytes = b"") -> bytes:
    """A chat request in chunks."""
    parts = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n" + parts + b"0\r\n"
    ) + (trailer + b"\r\n")
