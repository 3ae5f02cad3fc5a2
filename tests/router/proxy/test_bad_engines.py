"""An engine may send anything: it costs its own client one clean error at most, and nobody else anything."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Self

import httpx
import pytest
from router_support.engine import MockEngine, chunk
from router_support.serving import Running, eventually, question, serving

from blade_protocol.routing import EndpointConfig
from blade_router.http.upstream import connection as upstream

Script = Callable[[], Iterator[bytes]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
WHOLE = HEAD + b"content-length: 2\r\n\r\n{}"
RESET = b"(reset)"
STAY = b"(stay open)"
THINK = b"(think)"
"""Pieces of a script that are no bytes to send. A script that ends closes the connection."""


class BadEngine:
    """An engine that passes health checks and plays a script to each request."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.name = "bad"
        self.url = ""
        self.requests = 0
        self.sent = 0
        self.open = 0
        self._stop = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        self._stop.set()
        await eventually(lambda: not self.open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._respond(reader, writer)
        finally:
            self.open -= 1
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /health "):
            writer.write(WHOLE)
            return
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        await reader.readexactly(int(lengths[0]))
        self.requests += 1
        gone = asyncio.ensure_future(reader.read())
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            for piece in self.script():
                if gone.done() or piece == RESET:
                    writer.transport.abort()
                    return
                if piece == STAY:
                    await asyncio.wait((gone, stop), return_when=asyncio.FIRST_COMPLETED)
                    return
                if piece == THINK:
                    await asyncio.sleep(0.2)  # four times the limit of the test that uses it
                    continue
                writer.write(piece)
                self.sent += len(piece)
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            stop.cancel()
            if not gone.done():
                gone.cancel()
            await asyncio.gather(gone, stop, return_exceptions=True)


def plays(*pieces: bytes) -> Script:
    return lambda: iter(pieces)


def endless(start: bytes, again: bytes) -> Script:
    return lambda: itertools.chain((start,), itertools.repeat(again))


INVALID_RESPONSES: dict[str, Script] = {
    "bytes that are not HTTP": plays(bytes(range(256)) * 10),
    "another protocol": plays(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", STAY),
    "a line end too few": plays(b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}"),
    "a folded header": plays(HEAD + b"x-a: b\r\n evil: 1\r\ncontent-length: 2\r\n\r\n{}"),
    "a space in a header's name": plays(HEAD + b"x a: b\r\ncontent-length: 2\r\n\r\n{}"),
    "two lengths": plays(HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
    "length and chunks": plays(HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    "a length that is none": plays(HEAD + b"content-length: -2\r\n\r\n{}"),
    "a length beyond 64 bits": plays(HEAD + b"content-length: 99999999999999999999\r\n\r\n{}"),
    "a chunk's size beyond 64 bits": plays(CHUNKED + b"fffffffffffffffff\r\n{}", STAY),
    "a chunk's size that is none": plays(CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n", STAY),
    "status 999": plays(b"HTTP/1.1 999 What\r\ncontent-length: 2\r\n\r\n{}", STAY),
    "status 000": plays(b"HTTP/1.1 000 What\r\ncontent-length: 2\r\n\r\n{}", STAY),
    "another protocol proposed": plays(b"HTTP/1.1 101 Up\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nhello", STAY),
    "the end in the head": plays(HEAD),
    "nothing": plays(),
    "a reset in the head": plays(HEAD, RESET),
    "a body shorter than its length": plays(HEAD + b"content-length: 20\r\n\r\n{}"),
    "chunks without a last one": plays(CHUNKED + b"2\r\n{}\r\n"),
    "the end inside a chunk": plays(CHUNKED + b"14\r\n{}"),
    "an event stream without an event, cut": plays(EVENTS + b"14\r\ndata: {"),
    "an endless head": endless(HEAD, b"x-header: %s\r\n" % (b"y" * 1000)),
    "an endless header": endless(HEAD + b"x-header: ", b"y" * 1000),
    "an endless status line": endless(b"HTTP/1.1 200 ", b"y" * 1000),
    "endless interim responses": endless(b"", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
    "endless chunk extensions": endless(CHUNKED + b"2;x=", b"y" * 1000),
    "endless trailers": endless(CHUNKED + b"0\r\n", b"x-sum: %s\r\n" % (b"y" * 1000)),
    "an endless trailer": endless(CHUNKED + b"0\r\nx-sum: ", b"y" * 1000),
}


@contextlib.asynccontextmanager
async def routed(script: Script, *others: MockEngine) -> AsyncIterator[tuple[Running, BadEngine]]:
    async with BadEngine(script) as bad:
        endpoints = tuple(EndpointConfig(url=engine.url, name=engine.name) for engine in (bad, *others))
        async with serving(wait=False, endpoints=endpoints) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == len(endpoints))
            yield router, bad
            await eventually(lambda: not any(endpoint.in_flight for endpoint in router.router.endpoints.all))
            assert router.router.metrics.in_flight == 0


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("name", INVALID_RESPONSES)
async def test_an_invalid_response_is_retried_elsewhere(name: str, stream: bool) -> None:
    async with MockEngine("good") as good, routed(INVALID_RESPONSES[name], good) as (router, bad):
        while not bad.requests:
            response = await router.chat(stream=stream)
            assert (response.status_code, response.headers["x-blade-endpoint"]) == (200, "good")
            assert response.content.endswith(b"data: [DONE]\n\n") if stream else response.json()["object"]
        # requested once, and what the router let come in is bounded (sockets' buffers are counted too)
        assert bad.sent < 8 << 20


@pytest.mark.parametrize("name", INVALID_RESPONSES)
async def test_without_another_engine_it_is_a_clean_error(name: str) -> None:
    async with routed(INVALID_RESPONSES[name]) as (router, _):
        response = await router.chat()
        assert response.status_code == 503
        error = response.json()["error"]
        assert error["code"] == "engines_unavailable"
        assert "protocol" in error["message"] or "reset" in error["message"]


@pytest.mark.parametrize("pieces", [(HEAD,), (b"H",), (HEAD + b"x-head",)])
async def test_a_head_that_never_ends_is_given_up(pieces: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "HEAD_SECONDS", 0.05)
    async with routed(plays(*pieces, STAY)) as (router, bad):
        response = await router.chat()
        assert response.status_code == 503
        assert "protocol" in response.json()["error"]["message"]
        await eventually(lambda: not bad.open, "the router hung up")


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", THINK, WHOLE),
        (CHUNKED, THINK, b"2\r\n{", THINK, b"}\r\n0\r\n", THINK, b"\r\n"),
    ],
    ids=["after an interim response", "in the body"],
)
async def test_only_the_head_has_a_deadline(pieces: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "HEAD_SECONDS", 0.05)
    async with routed(plays(*pieces)) as (router, _):
        response = await router.chat()
        assert (response.status_code, response.content) == (200, b"{}")


UNUSUAL: dict[str, tuple[Script, int, bytes]] = {
    "no length, until it closes": (plays(HEAD + b"connection: close\r\n\r\n", b'{"a":', b"1}"), 200, b'{"a":1}'),
    "HTTP/1.0": (plays(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{}"), 200, b"{}"),
    "single bytes": (lambda: (bytes((byte,)) for byte in CHUNKED + b"2\r\n{}\r\n0\r\n\r\n"), 200, b"{}"),
    "chunks of one byte": (plays(CHUNKED + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n"), 200, b"x" * 5000),
    "chunk extensions": (plays(CHUNKED + b'2;a="b"\r\n{}\r\n0\r\n\r\n'), 200, b"{}"),
    "trailers": (plays(CHUNKED + b"2\r\n{}\r\n0\r\nx-sum: 1\r\nx-blade-a: 1\r\n\r\n"), 200, b"{}"),
    "a body longer than its length": (plays(HEAD + b"content-length: 2\r\n\r\n{}{}{}"), 200, b"{}"),
    "two responses": (plays(WHOLE + WHOLE), 200, b"{}"),
    "interim responses": (plays(b"HTTP/1.1 103 Early Hints\r\nx-a: 1\r\n\r\n" * 20 + WHOLE), 200, b"{}"),
    "204 with a length": (plays(b"HTTP/1.1 204 No\r\ncontent-length: 5\r\n\r\n"), 204, b""),
    "204 with a body": (plays(b"HTTP/1.1 204 No\r\ncontent-length: 5\r\n\r\nhello"), 204, b""),
    "204 with chunks": (plays(b"HTTP/1.1 204 No\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"), 204, b""),
    "304 with a length": (plays(b"HTTP/1.1 304 Same\r\ncontent-length: 5\r\netag: a\r\n\r\n"), 304, b""),
    "status 599": (plays(b"HTTP/1.1 599 What\r\ncontent-length: 2\r\n\r\n{}"), 599, b"{}"),
    "an offer to upgrade": (
        plays(HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\n{}"),
        200,
        b"{}",
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
async def test_unusual_responses_arrive_whole(name: str) -> None:
    script, status, body = UNUSUAL[name]
    async with routed(script) as (router, bad):
        for _ in range(2):  # whatever came after the first is not taken for the second
            response = await router.chat()
            assert (response.status_code, response.content) == (status, body)
            assert not {"x-sum", "x-a", "upgrade", "x-blade-a"} & response.headers.keys()
        assert bad.requests == 2


BROKEN_STREAMS: dict[str, tuple[bytes, ...]] = {
    "cut": (chunk(b"data: 1\n\n") + b"99\r\ndata: 2",),
    "reset": (chunk(b"data: 1\n\n"), RESET),
    "garbage for a chunk": (chunk(b"data: 1\n\n"), b"garbage\r\n"),
    "endless trailers": (chunk(b"data: 1\n\n") + b"0\r\n", b"x-sum: 1\r\n" * 20_000, STAY),
}


@pytest.mark.parametrize("name", BROKEN_STREAMS)
async def test_a_stream_that_breaks_ends_in_an_error_event(name: str) -> None:
    async with routed(plays(EVENTS, *BROKEN_STREAMS[name])) as (router, _):
        response = await router.chat(stream=True)
    assert response.status_code == 200
    first, last, rest = response.content.split(b"\n\n")
    assert (first, rest) == (b"data: 1", b"")
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_lost"


async def test_ten_megabytes_in_one_event_pass_and_others_do_not_notice() -> None:
    event = b"data: %b\n\n" % (b"x" * (10 << 20))
    pieces = [chunk(event[start : start + 65536]) for start in range(0, len(event), 65536)]
    gate = asyncio.Semaphore(0)
    async with (
        MockEngine("good", gate=gate, tokens=20) as good,
        routed(plays(EVENTS, *pieces, b"0\r\n\r\n"), good) as (router, _),
    ):
        responses = [asyncio.create_task(_post_stream(router)) for _ in range(2)]
        await eventually(lambda: good.active == 1, "one of the two went to each")
        for _ in range(20):
            gate.release()
        small, big = sorted([await response for response in responses], key=lambda response: len(response.content))
    assert big.content == event
    assert small.content == b"".join(good.event(index) for index in range(20)) + b"data: [DONE]\n\n"


async def _post_stream(router: Running) -> httpx.Response:
    return await router.client.post("/v1/chat/completions", json=question(stream=True))
