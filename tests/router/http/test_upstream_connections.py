"""Connections to engines are reused, and a dead idle one is replaced unseen."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
from router_support.engine import MockEngine
from router_support.serving import eventually, serving

from blade_router.http.upstream import pool as pool_module
from blade_router.http.upstream.connection import COPY_LIMIT, DEAD_AFTER, SLOW_AFTER, Connection
from blade_router.http.upstream.errors import BadResponse, ConnectFailed, ConnectionLost
from blade_router.http.upstream.pool import ConnectionPool

GET = b"GET /v1/models HTTP/1.1\r\nhost: e\r\n\r\n"


def attach(connection: Connection) -> None:
    """Attach no client: none disconnects in these tests."""


async def read_body(connection: Connection) -> bytes:
    parts = []
    while part := await connection.read():
        parts.append(part)
    return b"".join(parts)


async def test_sequential_requests_share_one_connection() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        for _ in range(5):
            assert (await router.chat()).status_code == 200
            assert (await router.chat(stream=True)).status_code == 200
        assert engine.connections - engine.probes == 1


async def test_idle_connection_that_died_is_replaced_once_and_unseen() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        await router.chat()
        engine.drop_connections()  # as an engine does after its keep-alive time
        assert (await router.chat()).status_code == 200
        assert router.router.endpoints.all[0].health.failures == 0
        assert sum(router.router.metrics.retries.values()) == 0


async def test_connection_that_dies_as_it_is_reused_is_replaced_unseen() -> None:
    """The race: the request is on its way while the engine closes the idle connection."""
    responses = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal responses
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        responses += 1
        await reader.readuntil(b"\r\n\r\n")  # the second request is read, and never gets a response
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = ConnectionPool("127.0.0.1", server.sockets[0].getsockname()[1])
    for _ in range(3):
        connection = await pool.exchange(GET, b"", attach)
        assert await read_body(connection) == b"ok"
        pool.release(connection)
    assert responses == 3
    pool.close()
    server.close()


async def test_fresh_connection_that_dies_is_a_failure() -> None:
    async with MockEngine("a", mode="reset") as engine:
        pool = ConnectionPool("127.0.0.1", engine.port)
        with pytest.raises(ConnectionLost):
            await pool.exchange(GET, b"", attach)
        assert len(engine.received) == 1


async def test_last_used_connection_is_used_first_and_the_rest_age_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MockEngine("a") as engine:
        pool = ConnectionPool("127.0.0.1", engine.port)
        first, second = [await pool.exchange(GET, b"", attach) for _ in range(2)]
        for connection in (first, second):
            await read_body(connection)
            pool.release(connection)
        third = await pool.exchange(GET, b"", attach)
        assert third is second
        await read_body(third)
        pool.release(third)
        monkeypatch.setattr(pool_module, "IDLE_LIMIT", 0.0)
        pool.prune()
        await eventually(lambda: not engine.open)
        fresh = await pool.exchange(GET, b"", attach)
        assert fresh not in (first, second)
        pool.discard(fresh)


async def test_closed_pool_drops_what_comes_back() -> None:
    async with MockEngine("a") as engine:
        pool = ConnectionPool("127.0.0.1", engine.port)
        connection = await pool.exchange(GET, b"", attach)
        pool.close()
        assert b'"id"' in await read_body(connection), "what was in flight finishes"
        pool.release(connection)
        await eventually(lambda: not engine.open)


async def test_tcp_keepalive_detects_an_engine_whose_machine_is_gone() -> None:
    """Nothing else would end a request there: a machine without power sends no reset."""
    async with MockEngine("a") as engine:
        connection = await ConnectionPool("127.0.0.1", engine.port).connect()
        sock = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == DEAD_AFTER * 1000
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < DEAD_AFTER
        ConnectionPool.discard(connection)


async def test_acknowledgements_are_delayed_where_that_is_asked_for() -> None:
    async with MockEngine("a") as engine:
        connection = await ConnectionPool("127.0.0.1", engine.port).connect()
        sock = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
        connection.acknowledge_less()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 0
        ConnectionPool.discard(connection)


@pytest.mark.parametrize("tail", [b"", b" the end", b"t" * COPY_LIMIT], ids=lambda tail: str(len(tail)))
@pytest.mark.parametrize("size", [5, COPY_LIMIT - 8, COPY_LIMIT - 1, COPY_LIMIT])
async def test_what_follows_a_body_is_sent_whatever_its_size(size: int, tail: bytes) -> None:
    """And where that is much, the engine has time to take it."""
    body = b"b" * size
    async with MockEngine("a") as engine:
        connection = await ConnectionPool("127.0.0.1", engine.port).connect()
        length = b"content-length: %d\r\n\r\n" % len(body + tail)
        connection.send(b"POST /v1/completions HTTP/1.1\r\nhost: e\r\n" + length, body, tail=tail)
        sock = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
        seconds = SLOW_AFTER if len(body + tail) >= COPY_LIMIT else DEAD_AFTER
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == seconds * 1000
        await eventually(lambda: bool(engine.received))
        assert engine.received[0].body == body + tail
        ConnectionPool.discard(connection)


async def test_refused_connection_is_reported() -> None:
    async with MockEngine("a") as engine:
        port = engine.port
    with pytest.raises(ConnectFailed, match="refused") as caught:
        await ConnectionPool("127.0.0.1", port).connect()
    assert (caught.value.absent, caught.value.reason) == (True, "refused")


@pytest.mark.parametrize(
    ("raw", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil close", 200, b"until close"),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", 200, b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\ncontent-length: 2\r\n\r\nok", 201, b"ok"),
        (b"HTTP/1.1 204 Nothing\r\n\r\n", 204, b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 1\r\n\r\n", 200, b"ok"),
    ],
)
async def test_framings_of_a_response(raw: bytes, status: int, body: bytes) -> None:
    async with raw_server(raw) as port:
        pool = ConnectionPool("127.0.0.1", port)
        connection = await pool.exchange(GET, b"", attach)
        assert connection.status == status
        assert await read_body(connection) == body
        pool.discard(connection)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", ConnectionLost),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", ConnectionLost),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", BadResponse),
    ],
)
async def test_incomplete_responses_are_errors(raw: bytes, error: type[Exception]) -> None:
    async with raw_server(raw) as port:
        pool = ConnectionPool("127.0.0.1", port)
        with pytest.raises(error):
            await read_body(await pool.exchange(GET, b"", attach))


async def test_bytes_after_a_response_are_never_the_next_response() -> None:
    two = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok" * 2
    async with raw_server(two, close=False) as port:
        pool = ConnectionPool("127.0.0.1", port)
        connection = await pool.exchange(GET, b"", attach)
        assert await read_body(connection) == b"ok"
        assert not connection.reusable
        pool.release(connection)
        await asyncio.sleep(0.01)  # lets the server's side end


@contextlib.asynccontextmanager
async def raw_server(raw: bytes, *, close: bool = True) -> AsyncIterator[int]:
    """A port that sends these bytes to each connection's first request, then closes it or waits for the client."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        with contextlib.suppress(OSError):
            await writer.drain()
            if not close:
                await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
