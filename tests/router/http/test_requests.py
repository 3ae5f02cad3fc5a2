"""What a client may send and what it may not, byte by byte."""

import asyncio
import gc
import math
import socket
from types import SimpleNamespace
from typing import cast

import pytest
from router_support.engine import MockEngine
from router_support.raw import BODY, HOST, chunked, connected, get, post
from router_support.serving import eventually, question, serving
from security.requests import BROKEN, SMUGGLED, START

from blade_router import app
from blade_router.http import connection
from blade_router.http.errors import Refused
from blade_router.http.request_reader import MAX_PIPELINED, HttpLimits, RequestReader, Stage

UPGRADE = b"connection: upgrade\r\nupgrade: websocket\r\n"


async def test_the_body_behind_an_offer_of_an_upgrade_is_read_as_any_other() -> None:
    """Whatever pieces it comes in; and what is behind it is the next request."""
    extended = chunked(BODY[:9], BODY[9:], trailer=b"x-sum: 1\r\n").replace(
        b"\r\n" + BODY[:1], b";a=b\r\n" + BODY[:1], 1
    )
    requests = [post(), post(b""), chunked(BODY), extended, get(b"/live")]
    stream = b"".join(request.replace(HOST, HOST + UPGRADE) for request in requests) + get(b"/live")
    loop = asyncio.get_running_loop()
    for size in (1, 2, 7, 64, len(stream)):
        reader = RequestReader(loop, HttpLimits(), wake=lambda: None, send_continue=lambda: None)
        for start in range(0, len(stream), size):
            reader.feed(stream[start : start + size])
        found = [each for each in reader.waiting if not isinstance(each, Refused)]
        assert [each.body for each in found] == [BODY, b"", BODY, BODY, b"", b""]
        assert [each.method for each in found] == [b"POST"] * 4 + [b"GET"] * 2
        assert reader.stage is Stage.IDLE


async def test_limits_hold_behind_an_offer_of_an_upgrade() -> None:
    upgrade = START.replace(HOST, HOST + UPGRADE)
    async with MockEngine("a") as engine, serving(engine, max_body_bytes=1000) as router:
        for sent, status in (
            (upgrade + b"content-length: 1001\r\n\r\n", 413),
            (upgrade + b"transfer-encoding: chunked\r\n\r\n" + (b"64\r\n" + b"x" * 100 + b"\r\n") * 11, 413),
            (upgrade + b"transfer-encoding: chunked\r\n\r\n2;" + b"x" * 4_000_000, 400),
        ):
            async with connected(router.port) as client:
                client.send(sent)
                assert (await client.response()).status == status
        assert engine.received == []


@pytest.mark.parametrize(("size", "status"), [(100_000, 200), (130_000, 200), (131_500, 400), (200_000, 400)])
async def test_a_head_has_a_limit_also_when_it_comes_in_one_piece(size: int, status: int) -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(post(BODY, b"x-a: " + b"a" * size))
        assert (await client.response()).status == status
        assert len(engine.received) == (status == 200)


async def test_pipelined_requests_are_served_in_order() -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(post() + get() + get(b"/nowhere") + chunked(BODY) + get(b"/live"))
        responses = [await client.response() for _ in range(5)]
        assert [response.status for response in responses] == [200, 200, 404, 200, 200]
        assert b"from a" in responses[0].body
        assert b'"id": "a"' in responses[1].body
        assert b"from a" in responses[3].body
        assert responses[4].body == b'{"status":"ok"}'


async def test_only_so_many_requests_are_read_ahead() -> None:
    gate = asyncio.Semaphore(0)
    async with MockEngine("a", gate=gate) as engine, serving(engine) as router, connected(router.port) as client:
        client.send(get(b"/live") * (MAX_PIPELINED + 10))
        responses = [await client.response() for _ in range(MAX_PIPELINED + 1)]
        assert [response.status for response in responses] == [200] * MAX_PIPELINED + [400]
        assert await client.closed() == b""
        assert engine.received == []


async def test_what_is_sent_ahead_is_not_read_without_bound() -> None:
    gate = asyncio.Semaphore(0)
    big = post(b'"%b"' % (b"x" * 4_000_000))
    async with MockEngine("a", gate=gate) as engine, serving(engine) as router, connected(router.port) as client:
        client.send(post())
        await eventually(lambda: engine.active == 1)
        client.send(big)
        (open_one,) = (each for each in router.server.connections if each.busy)
        await eventually(lambda: open_one.read_paused)
        gate.release()
        gate.release()
        assert [(await client.response()).status for _ in range(2)] == [200, 200]
        assert len(engine.received[1].body) == 4_000_002


async def test_http10_closes_unless_it_requests_keep_alive() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        async with connected(router.port) as client:
            client.send(post(version=b"1.0"))
            response = await client.response()
            assert (response.status, response.header("connection")) == (200, "close")
            assert await client.closed() == b""
        async with connected(router.port) as client:
            for _ in range(2):
                client.send(post(BODY, b"connection: keep-alive", version=b"1.0"))
                response = await client.response()
                assert (response.status, response.header("connection")) == (200, "keep-alive")


async def test_a_stream_in_http10_ends_with_the_connection() -> None:
    body = BODY[:-1] + b', "stream": true}'
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", gate=gate) as engine, serving(engine) as router, connected(router.port) as client:
        client.send(post(body, b"connection: keep-alive", version=b"1.0"))
        reading = asyncio.create_task(client.response())
        await eventually(lambda: any(each.responding for each in router.server.connections))
        gate.release()
        gate.release()
        response = await reading
        assert response.header("transfer-encoding") is None
        assert response.header("connection") == "close"
        assert response.body == b"".join(map(engine.event, range(3))) + b"data: [DONE]\n\n"


async def test_nothing_is_served_after_connection_close() -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(post(BODY, b"connection: close") + SMUGGLED)
        response = await client.response()
        assert (response.status, response.header("connection")) == (200, "close")
        assert await client.closed() == b""
        assert len(engine.received) == 1


async def test_expect_100_continue() -> None:
    async with MockEngine("a") as engine, serving(engine, max_body_bytes=1000) as router:
        async with connected(router.port) as client:
            request = post(BODY, b"expect: 100-continue")
            client.send(request[: -len(BODY)])
            assert (await client.response()).status == 100
            client.send(BODY)
            assert (await client.response()).status == 200
            client.send(post() + request[: -len(BODY)])  # pipelined: 100 Continue when it is its turn
            assert [(await client.response()).status for _ in range(2)] == [200, 100]
            client.send(BODY)
            assert (await client.response()).status == 200
        async with connected(router.port) as client:
            client.send(START + b"content-length: 1001\r\nexpect: 100-continue\r\n\r\n")
            assert (await client.response()).status == 413
        async with connected(router.port) as client:
            client.send(post(BODY, b"expect: a miracle"))
            assert (await client.response()).status == 417


async def test_head_of_the_routers_own_pages_has_no_body() -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        async with connected(router.admin_port) as admin:
            for path in (b"/health", b"/metrics", b"/status"):
                admin.send(get(path, method=b"HEAD"))
                response = await admin.response(bodiless=True)
                assert response.status == 200
                assert int(response.header("content-length") or 0) > 0
        client.send(get(b"/v1/models", method=b"HEAD"))
        listed = await client.response(bodiless=True)
        assert listed.status == 200
        assert int(listed.header("content-length") or 0) > 0
        client.send(get(b"/live"))
        assert (await client.response()).status == 200, "no byte of a body was sent in between"


@pytest.mark.parametrize("path", [b"/metrics/", b"/live/", b"/status/"])
async def test_the_routers_own_pages_redirect_nowhere(path: bytes) -> None:
    """A redirect would go to the host that the client named, whoever that is."""
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(get(path).replace(b"host: router", b"host: evil.example"))
        response = await client.response()
        assert response.status in (200, 404)
        assert response.header("location") is None
        assert b"evil.example" not in response.body


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"br", b"gzip, identity"])
async def test_compressed_bodies_are_415(coding: bytes) -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(post(b"\x1f\x8b\x08", b"content-encoding: " + coding))
        response = await client.response()
        assert response.status == 415
        assert "send the body unencoded" in response.error["message"]
        client.send(post())
        assert (await client.response()).status == 200
        assert len(engine.received) == 1


@pytest.mark.parametrize(
    "body", [b'{"model": "\xff"}', b'{"a": "\xc3("}', b"\xff\xfe{\x00}\x00", b'{"a": "\xed\xa0\x80"}']
)
async def test_invalid_utf8_is_400(body: bytes) -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(post(body))
        response = await client.response()
        assert (response.status, response.error["code"]) == (400, "invalid_json")
        assert engine.received == []


async def test_an_announced_body_over_the_limit_is_refused_before_it_is_read() -> None:
    async with MockEngine("a") as engine, serving(engine, max_body_bytes=1000) as router:
        async with connected(router.port) as client:
            client.send(START + b"content-length: 1001\r\n\r\n")
            response = await client.response()
            assert (response.status, response.header("connection")) == (413, "close")
            assert "1000 bytes" in response.error["message"]
            assert await client.closed() == b""
        assert engine.received == []


async def test_chunks_are_refused_as_soon_as_they_pass_the_limit() -> None:
    async with MockEngine("a") as engine, serving(engine, max_body_bytes=1000) as router:
        async with connected(router.port) as client:
            client.send(START + b"transfer-encoding: chunked\r\n\r\n" + (b"64\r\n" + b"x" * 100 + b"\r\n") * 11)
            response = await client.response()
            assert (response.status, response.header("connection")) == (413, "close")
        assert engine.received == []


async def test_trailers_and_extensions_have_an_end() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        for endless in (b"2;" + b"x" * 4_000_000, b"2\r\n{}\r\n0\r\nx: " + b"y" * 4_000_000):
            async with connected(router.port) as client:
                client.send(START + b"transfer-encoding: chunked\r\n\r\n" + endless)
                assert (await client.response()).status == 400
        assert engine.received == []


async def test_many_small_chunks_make_one_body() -> None:
    body = b'{"model": "' + b"m" * 3000 + b'"}'
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(chunked(*(body[index : index + 1] for index in range(len(body)))))
        assert (await client.response()).status == 200
        assert engine.received[0].body == body


@pytest.mark.parametrize(
    "sent", [b"P", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-a:", START + b"content-length: 9\r\n\r\n{"]
)
async def test_a_request_that_does_not_go_on_is_408(sent: bytes) -> None:
    async with MockEngine("a") as engine:
        async with serving(engine, header_timeout=0.1, body_timeout=0.1) as router, connected(router.port) as client:
            client.send(sent)
            response = await client.response()
            assert (response.status, response.header("connection")) == (408, "close")
            assert response.error["code"] == "request_timeout"
            assert await client.closed() == b""


async def test_a_head_in_drops_gains_no_time_and_a_body_in_drops_does() -> None:
    clock = [0.0]
    loop = cast(asyncio.AbstractEventLoop, SimpleNamespace(time=lambda: clock[0]))
    limits = HttpLimits(header_timeout=10, body_timeout=30, keep_alive=75)
    reader = RequestReader(loop, limits, wake=lambda: None, send_continue=lambda: None)
    assert reader.deadline == 75
    for clock[0], piece in ((5.0, START[:9]), (9.0, START[9:10]), (14.0, START[10:11])):
        reader.feed(piece)
        assert reader.deadline == 15
    reader = RequestReader(loop, limits, wake=lambda: None, send_continue=lambda: None)
    reader.feed(START + b"content-length: 9\r\n\r\n")
    for clock[0] in (20.0, 49.0, 78.0):
        reader.feed(b" ")
        assert reader.deadline == clock[0] + 30
    assert reader.time_out()
    (refusal,) = reader.waiting
    assert isinstance(refusal, Refused)
    assert refusal.status == 408


async def test_an_idle_connection_is_closed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "CLIENT_KEEP_ALIVE", 0.1)
    async with MockEngine("a") as engine, serving(engine) as router:
        async with connected(router.port) as silent, connected(router.port) as client:
            client.send(post())
            assert (await client.response()).status == 200
            assert await client.closed() == await silent.closed() == b"", "without a response to nothing"


async def test_a_client_that_never_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL_TIMEOUT", 0.1)
    async with MockEngine("a", tokens=400, padding="x" * 50_000) as engine:
        async with serving(engine, header_timeout=0.2) as router, connected(router.port, limit=1000) as client:
            client.send(post(BODY[:-1] + b', "stream": true}'))
            await eventually(lambda: engine.active == 1)
            await eventually(lambda: engine.aborted == 1)
            await eventually(lambda: not any(each.busy for each in router.server.connections))


async def test_a_slow_response_is_no_slow_request() -> None:
    gate = asyncio.Semaphore(0)
    async with MockEngine("a", gate=gate) as engine, serving(engine) as router, connected(router.port) as client:
        client.send(post() + b"GET /v1/mod")  # the beginning of the next one waits meanwhile
        await eventually(lambda: engine.active == 1)
        (open_one,) = (each for each in router.server.connections if each.busy)
        open_one.check_deadlines(math.inf)
        gate.release()
        assert (await client.response()).status == 200
        await eventually(lambda: not open_one.busy)
        open_one.check_deadlines(router.server.loop.time() + 9)  # its time has begun just now
        assert open_one.stage is Stage.HEAD
        open_one.check_deadlines(math.inf)
        assert (await client.response()).status == 408


async def test_a_client_that_closes_its_side_is_gone() -> None:
    """A half-closed socket is not distinguishable from a closed one, and an engine must not work for nobody."""
    gate = asyncio.Semaphore(0)
    async with MockEngine("a", gate=gate) as engine, serving(engine) as router, connected(router.port) as client:
        client.send(post())
        await eventually(lambda: engine.active == 1)
        client.writer.write_eof()
        assert await client.closed() == b""
        await eventually(lambda: engine.aborted == 1)
        await eventually(lambda: not any(each.busy for each in router.server.connections))
        assert router.router.metrics.requests == {499: 1}


async def test_a_client_that_reads_nothing_holds_its_engine_back_and_nobody_else() -> None:
    async with MockEngine("a", tokens=400, padding="x" * 50_000) as engine, serving(engine) as router:
        async with connected(router.port, limit=1000) as client:
            client.send(post(BODY[:-1] + b', "stream": true}'))
            await client.reader.readuntil(b"\r\n\r\n")
            (open_one,) = (each for each in router.server.connections if each.busy)
            await eventually(lambda: open_one.write_paused)
            assert engine.active == 1, "what it would send waits at the engine"
            assert (await router.client.get("/v1/models")).status_code == 200
        await eventually(lambda: engine.active == 0)


async def test_nothing_is_left_of_a_connection() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        tasks = len(asyncio.all_tasks())
        for sent in (b"", b"GET", post(), BROKEN["no host"], START + b"content-length: 9\r\n\r\n{"):
            async with connected(router.port) as client:
                client.send(sent)
                await client.send_slowly([])
        await eventually(lambda: not router.server.connections)
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks)


def connections() -> set[connection.HttpConnection]:
    """All that exist, in use or not."""
    return {each for each in gc.get_objects() if type(each) is connection.HttpConnection}


async def test_a_closed_connection_is_freed_without_the_collector() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        others = connections()
        gc.disable()
        try:
            for sent in (post(), BROKEN["no host"], b"GET / HT"):
                async with connected(router.port) as client:
                    client.send(sent)
                    await eventually(lambda: router.server.connections)
                await eventually(lambda: connections() <= others)
        finally:
            gc.enable()


async def test_small_responses_are_sent_at_once() -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(get(b"/live"))
        await client.response()
        (open_one,) = router.server.connections
        sock = open_one.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert open_one.stage is Stage.IDLE


@pytest.mark.interpreted
async def test_a_failure_of_our_own_is_a_500_and_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        monkeypatch.setattr(router.router.proxy.policy, "choose", lambda *arguments: 1 / 0)
        response = await router.chat()
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
        assert "ZeroDivisionError" in caplog.text
        monkeypatch.undo()
        assert (await router.client.post("/v1/chat/completions", json=question())).status_code == 200
