"""One client's connection cannot make a server hold or wait for more than it must."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from blade_llm.api.common.body import read_body
from blade_llm.api.common.errors import ApiError
from blade_llm.server.http.limits import MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED, RESERVED_CONNECTIONS, HttpLimits
from blade_llm.server.http.server import HttpServer

SOON = 0.05
"""Seconds: a deadline that a test waits for."""
GET = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
CHUNKED = b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class App:
    """Reads each body and responds with what it got; ``/hang`` streams until its client has left."""

    max_body_bytes: int
    paths: list[str] = field(default_factory=list)
    headers: list[dict[bytes, bytes]] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    padding: bytes = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        status, body, headers = 200, self.padding, {}
        try:
            body += await read_body(Request(scope, receive), self.max_body_bytes)
        except ApiError as error:
            status, body, headers = error.status, error.body(), error.headers
        self.headers.append(dict(scope["headers"]))
        if scope["path"] == "/hang":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
            return
        given = [(name.encode(), value.encode()) for name, value in headers.items()]
        given.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": given})
        await send({"type": "http.response.body", "body": body})


class Client:
    """A connection as bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def response(self) -> tuple[int, bytes]:
        """Status and body of the next response, which has a length."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        return int(head.split()[1]), await self._reader.readexactly(length)

    async def refused(self) -> int:
        """The status of an error that ends the connection."""
        status, body = await self.response()
        assert json.loads(body)["error"]["message"]
        await self.closed()
        return status

    async def closed(self) -> None:
        """Return when the server has closed the connection without another byte."""
        with contextlib.suppress(ConnectionError):
            assert await self._reader.read() == b""

    def leave(self) -> None:
        self._writer.close()


Connect = Callable[[], Awaitable[Client]]


@contextlib.asynccontextmanager
async def serving(limits: HttpLimits) -> AsyncIterator[tuple[App, Connect]]:
    app = App(limits.max_body_bytes)
    server = HttpServer(app, limits, "INFO")
    clients: list[Client] = []
    with socket.create_server(("127.0.0.1", 0), backlog=512) as sock:
        port = sock.getsockname()[1]
        task = await server.begin(sock)

        async def connect() -> Client:
            clients.append(Client(*await asyncio.open_connection("127.0.0.1", port)))
            return clients[-1]

        try:
            async with asyncio.timeout(5):
                yield app, connect
        finally:
            for client in clients:
                client.leave()
            server.should_exit = True
            await task


@pytest.mark.parametrize(
    ("received", "status"),
    [
        pytest.param(b"GET / HTTP/1.1\r\na: " + b"x" * 2 * MAX_HEAD_BYTES + b"\r\n\r\n", 431, id="one header"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (MAX_HEADERS + 1) + b"\r\n", 431, id="many headers"),
        pytest.param(b"GET /" + b"x" * 2 * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n", 431, id="target"),
        pytest.param(b"GET / HTTP/1.1\r\na: " + b"x" * 2 * MAX_HEAD_BYTES, 431, id="without an end"),
        pytest.param(b"\r\n" * MAX_HEAD_BYTES, 431, id="empty lines"),
        pytest.param(CHUNKED + b"1;" + b"x" * 2 * MAX_HEAD_BYTES, 431, id="chunk extension"),
        pytest.param(CHUNKED + b"0\r\n" + b"a: b\r\n" * MAX_HEAD_BYTES, 431, id="trailers"),
        pytest.param(b"no HTTP\r\n\r\n", 400, id="no HTTP"),
        pytest.param(POST % 11 + b"x" * 11, 413, id="body"),
    ],
)
async def test_what_is_too_large_is_refused(received: bytes, status: int) -> None:
    async with serving(HttpLimits(max_body_bytes=10)) as (_, connect):
        client = await connect()
        for begin in range(0, len(received), 1 << 15):
            await client.send(received[begin : begin + (1 << 15)])
        assert await client.refused() == status
        assert (await ok(await connect())) == b""


async def test_trailers_are_no_headers_of_the_request() -> None:
    async with serving(HttpLimits()) as (app, connect):
        client = await connect()
        await client.send(CHUNKED + b"2\r\nhi\r\n0\r\nx-blade-internal-token: x\r\n\r\n")
        assert await client.response() == (200, b"hi")
        assert b"x-blade-internal-token" not in app.headers[0]


UPGRADE = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAA\r\n"


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("received", "body"),
    [
        (GET, b""),
        (POST % 5 + b"hello", b"hello"),
        (CHUNKED + b"2\r\nhe\r\n3;a=b\r\nllo\r\n0\r\nx: y\r\n\r\n", b"hello"),
    ],
    ids=["no body", "a length", "chunks"],
)
async def test_an_offer_of_another_protocol_is_ignored(received: bytes, body: bytes, at_once: bool) -> None:
    """``curl --http2`` offers one with every request."""
    received = received.replace(b"host: x\r\n", b"host: x\r\n" + UPGRADE)
    async with serving(HttpLimits()) as (app, connect):
        client = await connect()
        sent = received + received + GET
        for begin in range(0, len(sent), len(sent) if at_once else 1):
            await client.send(sent[begin : begin + (len(sent) if at_once else 1)])
        assert [await client.response() for _ in range(3)] == [(200, body), (200, body), (200, b"")]
        assert app.paths == ["/x"] * 3


@pytest.mark.parametrize(
    ("received", "status"),
    [
        (POST % 11 + b"x" * 11, 413),
        (CHUNKED + b"b\r\n" + b"x" * 11 + b"\r\n0\r\n\r\n", 413),
        (CHUNKED + b"zz\r\n", 400),
        (CHUNKED + b"1\nx\r\n", 400),
        (CHUNKED + b"1;" + b"x" * 2 * MAX_HEAD_BYTES, 431),
        (CHUNKED.replace(b"chunked", b"gzip") + b"hello", 400),
        (CHUNKED.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n") + b"0\r\n\r\n", 400),
        (CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n", 400),
        (CHUNKED.replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\n\r\n") + b"0\r\n\r\n", 400),
        (CHUNKED + b"5\r\nhel", 408),
    ],
)
async def test_limits_hold_behind_an_offer_of_another_protocol(received: bytes, status: int) -> None:
    async with serving(HttpLimits(max_body_bytes=10, body_seconds=SOON)) as (_, connect):
        client = await connect()
        await client.send(received.replace(b"host: x\r\n", b"host: x\r\n" + UPGRADE))
        assert await client.refused() == status


@pytest.mark.parametrize("received", [b"G", b"GET / HTTP/1.1\r\nhost", CHUNKED + b"5\r\nhel", POST % 5 + b"hel"])
async def test_what_does_not_go_on_is_refused(received: bytes) -> None:
    async with serving(HttpLimits(head_seconds=SOON, body_seconds=SOON)) as (_, connect):
        first = await connect()
        await first.send(received)
        assert await first.refused() == 408
        later = await connect()  # on a connection that has served
        assert await ok(later) == b""
        await later.send(received)
        assert await later.refused() == 408


async def test_silence_ends_a_connection() -> None:
    async with serving(HttpLimits(head_seconds=SOON, idle_seconds=SOON)) as (_, connect):
        await (await connect()).closed()
        client = await connect()
        assert await ok(client) == b""
        await client.closed()
        client = await connect()
        assert await ok(client) == b""
        await client.send(b"\r\n")  # no beginning of a request
        await client.closed()


async def test_a_body_that_was_refused_does_not_go_on_for_ever() -> None:
    async with serving(HttpLimits(max_body_bytes=10, body_seconds=SOON)) as (_, connect):
        client = await connect()
        await client.send(b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        await client.send(b"x" * 11)
        assert await client.refused() == 413


async def test_what_a_pipelined_request_still_lacks_disturbs_no_response() -> None:
    async with serving(HttpLimits(head_seconds=SOON, body_seconds=SOON)) as (app, connect):
        client = await connect()
        await client.send(GET.replace(b"/x", b"/hang") + b"GET / HT")
        await asyncio.sleep(3 * SOON)
        assert not app.left.is_set()


async def test_of_pipelined_requests_the_one_that_runs_learns_that_its_client_left() -> None:
    async with serving(HttpLimits()) as (app, connect):
        client = await connect()
        await client.send(GET.replace(b"/x", b"/hang") + GET)
        await until(lambda: app.paths)
        client.leave()
        await app.left.wait()
        assert app.paths == ["/hang"]


async def test_pipelined_requests_are_bounded() -> None:
    async with serving(HttpLimits()) as (app, connect):
        client = await connect()
        await client.send(GET * MAX_PIPELINED)
        assert [(await client.response())[0] for _ in range(MAX_PIPELINED)] == [200] * MAX_PIPELINED
        flood = await connect()
        await flood.send(GET.replace(b"/x", b"/hang") + GET * 2 * MAX_PIPELINED)
        await app.left.wait()
        assert app.paths.count("/x") == MAX_PIPELINED, "none of the flood"


async def test_incomplete_bodies_are_bounded_together() -> None:
    limits = HttpLimits(max_body_bytes=100, max_incomplete_bytes=150)
    async with serving(limits) as (_, connect):
        first, second = await connect(), await connect()
        await first.send(POST % 100 + b"x" * 99)
        await first.send(b"")
        await asyncio.sleep(SOON)
        await second.send(POST % 100 + b"x" * 60)
        assert await second.refused() == 503
        await first.send(b"x")
        assert await first.response() == (200, b"x" * 100)
        for _ in range(5):
            await first.send(POST % 100 + b"y" * 100)
            assert (await first.response())[0] == 200, "what is complete does not count"


async def test_the_connection_that_was_idle_for_longest_makes_room() -> None:
    async with serving(HttpLimits(max_connections=2)) as (_, connect):
        silent = await connect()
        used = await connect()
        assert await ok(used) == b""
        newest = await connect()
        assert await ok(newest) == b""
        await silent.closed()
        assert await ok(used) == b""
        partial = await connect()  # of newest and used, newest has been idle for longer
        await newest.closed()
        await partial.send(b"GET / HT")
        another = await connect()
        await used.closed()
        assert await ok(another) == b""
        assert await ok(await connect()) == b""
        await partial.closed()


async def test_beyond_the_limit_probes_are_answered_and_nothing_else() -> None:
    async with serving(HttpLimits(max_connections=2)) as (app, connect):
        for _ in range(2):
            await (await connect()).send(GET.replace(b"/x", b"/hang"))
        await until(lambda: len(app.paths) == 2)
        probe = await connect()
        for path in (b"/health", b"/live", b"/metrics"):
            assert await ok(probe, path) == b""
        assert await ok(probe, b"/x", 503)
        await probe.closed()
        assert not app.left.is_set()
        reserve = [await connect() for _ in range(RESERVED_CONNECTIONS)]
        assert await ok(reserve[-1], b"/live") == b""


async def test_a_client_that_does_not_read_is_dropped() -> None:
    async with serving(HttpLimits(stall_seconds=SOON)) as (app, connect):
        app.padding = b"x" * (32 << 20)
        client = await connect()
        client._writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(GET)
        await until(lambda: app.paths)
        await asyncio.sleep(3 * SOON)
        client._writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.response()


async def ok(client: Client, path: bytes = b"/x", expected: int = 200) -> bytes:
    await client.send(GET.replace(b"/x", path))
    status, body = await client.response()
    assert status == expected
    return body


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what another task does
        await asyncio.sleep(0.005)
