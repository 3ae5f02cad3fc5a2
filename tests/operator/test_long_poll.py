"""A response that takes its time, and those that never are one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from blade_operator import long_poll


@asynccontextmanager
async def server(response: bytes, requests: list[bytes] | None = None) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if requests is not None:
            requests.append(request)
        writer.write(response)
        await writer.drain()
        if response:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/signals?wait=1"
    finally:
        listening.close()


async def test_the_body_is_returned_and_the_headers_are_sent() -> None:
    requests: list[bytes] = []
    async with server(b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 4\r\n\r\nbodyrest", requests) as url:
        assert await long_poll.get(url, {"x-token": "secret"}, 60) == b"body"
    head = requests[0].decode().split("\r\n")
    assert head[0] == "GET /signals?wait=1 HTTP/1.1"
    assert {"x-token: secret", "connection: close"} <= set(head)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", ValueError),
        (b"HTTP/1.1 200 OK\r\n\r\n", ValueError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", ValueError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", ValueError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n", ValueError),
        (b"SSH-2.0\r\n\r\n", ValueError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", OSError),
        (b"HTTP/1.1 200 OK\r\nContent-Le", OSError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 16) + b"\r\n\r\n", OSError),
    ],
)
async def test_a_response_of_another_kind_is_an_error(response: bytes, error: type[Exception]) -> None:
    async with server(response) as url:
        with pytest.raises(error):
            await long_poll.get(url, {}, 60)


async def test_a_server_that_never_responds_is_left_after_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_poll, "MARGIN", 0.01)
    async with server(b"") as url:
        with pytest.raises(TimeoutError):
            await long_poll.get(url, {}, 0.01)


async def test_nobody_listens() -> None:
    async with server(b"") as url:
        pass
    with pytest.raises(OSError, match="onnect"):
        await long_poll.get(url, {}, 1)
