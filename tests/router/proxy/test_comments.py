"""Comments in streams: they keep a silent one alive, count as nothing, and leave every way open until the answer."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from router_support.engine import MockEngine
from router_support.raw import BODY, connected, post
from router_support.serving import eventually, question, serving
from router_support.streams import config, replica

from blade_protocol.routing import EndpointConfig, RouterConfig
from blade_router.observability.outcome import Outcome
from blade_router.resume.comments import num_comments, without_comments
from blade_router.resume.stream import EventStream

INTERVAL = 0.04
COMMENT = b": keep-alive\n\n"
ASKED = BODY[:-1] + b', "stream": true}'
PATHS = {
    "/v1/chat/completions": question(stream=True),
    "/v1/responses": {"model": "mock", "input": "x", "stream": True},
}


def events(engine: MockEngine, path: str = "/v1/chat/completions") -> bytes:
    if path == "/v1/responses":
        return b"".join(map(engine.response_event, range(engine.tokens)))
    return b"".join(map(engine.event, range(engine.tokens))) + b"data: [DONE]\n\n"


async def opened(router: Any, count: int, path: str = "/v1/chat/completions") -> Any:
    """A stream of which so many comments have come, and what has come."""
    request = router.client.build_request("POST", path, json=PATHS[path])
    response = await router.client.send(request, stream=True)
    parts = response.aiter_raw()
    got = b""
    while got.count(COMMENT) < count:
        got += await anext(parts)
    return response, parts, got


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_comments_come_before_and_between_events(path: str, resumable: bool) -> None:
    engine = MockEngine("a", gate=asyncio.Semaphore(0), resumable=resumable)
    outcomes: list[Outcome] = []
    async with engine, serving(engine, stream_comment_interval=INTERVAL) as router:
        router.router.proxy.observers = [outcomes.append]
        response, parts, got = await opened(router, 2, path)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-request-id"]
        assert got == COMMENT * got.count(COMMENT)
        assert engine.gate is not None
        for index in range(engine.tokens):
            engine.gate.release()
            while got.count(COMMENT) < 2 * (index + 1) and index < engine.tokens - 1:
                got += await anext(parts)
        got += b"".join([part async for part in parts])
        assert got.replace(COMMENT, b"") == events(engine, path)
        assert got.count(COMMENT) >= 2 * (engine.tokens - 1)
        await eventually(lambda: outcomes)
    (outcome,) = outcomes
    assert outcome.request is not None
    assert outcome.request.events == events(engine, path).count(b"\n\n"), "comments are no tokens"
    assert outcome.request.first_byte_at - outcome.started > INTERVAL, "nor the first one"
    assert [each.header("x-blade-comments") for each in engine.received] == [["0"]]


async def test_until_the_first_comment_a_refusal_keeps_its_status() -> None:
    async with MockEngine("a", mode="status", status=404) as engine:
        async with serving(engine, stream_comment_interval=30.0) as router:
            assert (await router.chat(stream=True)).status_code == 404


@pytest.mark.parametrize("interval", [0.0, 60.0])
async def test_without_silence_there_are_no_comments(interval: float) -> None:
    async with MockEngine("a", delay=0.1) as engine, serving(engine, stream_comment_interval=interval) as router:
        assert (await router.chat(stream=True)).content == events(engine)


async def test_what_is_no_stream_gets_no_comment() -> None:
    async with MockEngine("a", delay=0.3) as engine, serving(engine, stream_comment_interval=INTERVAL) as router:
        response = await router.chat()
        assert response.json()["choices"]
        embedded = {"model": "mock", "input": "x", "stream": True}
        assert (await router.client.post("/v1/embeddings", json=embedded)).json() == {"path": "/v1/embeddings"}
        refused = await router.client.post("/v1/chat/completions", json=question() | {"stream": "false"})
        assert refused.json()["choices"]


async def test_after_comments_a_request_still_goes_elsewhere() -> None:
    """The engine dies in the middle of the prefill: the client gets the answer of another one."""
    engines = [MockEngine(name, gate=asyncio.Semaphore(0)) for name in "ab"]
    async with engines[0], engines[1], serving(*engines, stream_comment_interval=INTERVAL) as router:
        _, parts, got = await opened(router, 1)
        lost, good = engines if engines[0].active else reversed(engines)
        assert good.gate is not None
        await lost.kill()
        for _ in range(good.tokens):
            good.gate.release()
        got += b"".join([part async for part in parts])
        assert got.replace(COMMENT, b"") == events(good)
        assert await router.metric('blade_router_requests_total{code="200"}') == 1


@pytest.mark.parametrize(
    ("path", "shape"),
    [("/v1/chat/completions", "data: "), ("/v1/responses", "event: error\ndata: ")],
)
async def test_an_error_after_comments_is_an_event_of_the_api(path: str, shape: str) -> None:
    async with MockEngine("a", mode="hang") as engine, serving(engine, stream_comment_interval=INTERVAL) as router:
        _, parts, got = await opened(router, 1, path)
        await engine.kill()
        got += b"".join([part async for part in parts])
        event = got.replace(COMMENT, b"").decode()
        assert event.startswith(shape)
        assert event.endswith("}\n\n")
        data = json.loads(event.removeprefix(shape))
        assert (data["type"] == "error" and data["sequence_number"] == 0) if path == "/v1/responses" else data["error"]
        assert await router.metric('blade_router_requests_total{code="200"}') == 0


async def test_comments_come_while_a_request_waits_in_the_queue(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    path.write_text(json.dumps({"queue": {"endpoint_requests": 1}}))
    engine = MockEngine("a", gate=asyncio.Semaphore(0))
    async with engine, serving(engine, config=path, stream_comment_interval=INTERVAL) as router:
        first = asyncio.create_task(router.chat())
        await eventually(lambda: engine.active)
        _, parts, got = await opened(router, 2)
        assert len(engine.received) == 1, "the second one waits in the router"
        assert engine.gate is not None
        for _ in range(4):
            engine.gate.release()
        got += b"".join([part async for part in parts])
        assert got.replace(COMMENT, b"") == events(engine)
        assert (await first).status_code == 200


async def test_a_stream_that_is_resumed_has_each_event_once_and_comments_between() -> None:
    first, second = replica("a", tokens=5), replica("b", tokens=5)
    async with first, second, serving(endpoints=(), wait=False, stream_comment_interval=INTERVAL) as router:
        router.router.apply(RouterConfig(endpoints=(config(first), config(second))))
        await eventually(lambda: router.router.endpoints.usable_count() == 2)
        _, parts, got = await opened(router, 1)
        begun, other = (first, second) if first.active else (second, first)
        assert begun.gate is not None
        assert other.gate is not None
        for _ in range(2):
            begun.gate.release()
        while got.count(b"data: ") < 2:
            got += await anext(parts)
        await begun.kill()
        await eventually(lambda: other.resumed)
        before = got.count(COMMENT)
        while got.count(COMMENT) < before + 2:
            got += await anext(parts)
        for _ in range(3):
            other.gate.release()
        got += b"".join([part async for part in parts])
        assert got.replace(COMMENT, b"") == events(first)
        assert other.resumed[0]["token_ids"] == [[0], [1]]


async def test_an_engines_comments_are_no_sign_that_it_has_begun() -> None:
    """It breaks after two comments: the request goes elsewhere, and the client sees nothing of it."""
    bad = MockEngine("a", comments=2, mode="break", tokens=1)
    good = MockEngine("b", comments=2)
    async with bad, good, serving(bad, good, policy="round-robin", max_tries=3) as router:
        answers = [(await router.chat(stream=True)).content for _ in range(2)]
    assert answers == [events(good)] * 2
    assert bad.received


async def test_a_client_that_leaves_between_comments_is_noticed() -> None:
    async with MockEngine("a", mode="hang") as engine, serving(engine, stream_comment_interval=INTERVAL) as router:
        async with connected(router.port) as client:
            client.send(post(ASKED))
            await client.reader.readuntil(COMMENT)
        await eventually(lambda: engine.aborted == 1)


async def test_thousands_of_waiting_streams_need_no_timer_and_no_task_each() -> None:
    count = 300
    async with MockEngine("a", mode="hang") as engine, serving(engine, stream_comment_interval=INTERVAL) as router:
        before = len(asyncio.all_tasks())
        clients = [await asyncio.open_connection("127.0.0.1", router.port) for _ in range(count)]
        for _, writer in clients:
            writer.write(post(ASKED))
        await asyncio.gather(*(reader.readuntil(COMMENT) for reader, _ in clients))
        # Its connection's, and the mock engine's.
        assert len(asyncio.all_tasks()) - before <= 2 * count
        for _, writer in clients:
            writer.close()


def test_comments_are_told_from_events() -> None:
    assert num_comments(b": a\n\n:\n\ndata: :\n\n: b\n\n") == 3
    assert without_comments(b": a\n\n:b\n\ndata: 1\n\n: c\n\n") == b"data: 1\n\n: c\n\n"
    assert without_comments(b": a\n\n") == b""
    stream = EventStream()
    for chunk, count in ((b": a\n\n", 0), (b"data: 1\n\n", 1), (b": a\n\ndata: 2\n\n", 1), (b": a\n\n: b\n\n", 0)):
        assert (stream.feed(chunk), stream.count) == (chunk, count)
    assert stream.last.endswith(b"data: 2\n\n"), "the usage may be there"


def test_a_line_of_comment_is_not_its_whole_event() -> None:
    mixed = b": a\ndata: 1\n\n"
    assert (num_comments(mixed), num_comments(b": a\n: b\n\n" + mixed)) == (0, 1)
    assert without_comments(b": a\n: b\n\n" + mixed) == b"data: 1\n\n"
    stream = EventStream()
    assert (stream.feed(b": a\ndata: [DONE]\n\n"), stream.count, stream.over) == (b": a\ndata: [DONE]\n\n", 1, True)


def test_comments_and_events_that_end_in_cr_lf() -> None:
    """As some servers write both: an event behind a comment is not taken for one."""
    both = b": ping\r\n\r\ndata: 1\r\n\r\n"
    assert num_comments(both) == 0
    assert without_comments(both) == b"data: 1\r\n\r\n"
    stream = EventStream()
    assert (stream.feed(both), stream.last) == (both, both)
    assert (stream.feed(b": ping\r\n\r\n"), stream.count, stream.last) == (b": ping\r\n\r\n", 0, both)


@pytest.mark.parametrize(
    ("event", "shape"),
    [
        (b"event: content_block_delta\ndata: {}\n\n", b'event: error\ndata: {"type":"error","error":'),
        (
            b'event: response.created\ndata: {"sequence_number":3}\n\n',
            b'event: error\ndata: {"type":"error","code":"engine_lost"',
        ),
    ],
)
def test_a_stream_that_breaks_behind_a_comment_ends_as_its_api_has_it(event: bytes, shape: bytes) -> None:
    stream = EventStream()
    stream.feed(event + b": a\n\n")
    assert stream.broken("it was reset").startswith(shape)
    stream.feed(b"event: message_stop\ndata: {}\n\n: a\n\n")
    assert stream.over


async def test_what_is_no_stream_may_begin_like_a_comment() -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\n: a\n\n")

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    endpoint = EndpointConfig(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", name="a", engine="vllm")
    async with serving(wait=False, endpoints=(endpoint,)) as router:
        assert (await router.client.get("/version")).content == b": a\n\n"
    server.close()
