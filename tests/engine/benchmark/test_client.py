"""The benchmark's client against servers that response well, badly, and not at all."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import ssl
from asyncio import StreamWriter as Writer
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_support.fake_openai import (
    DONE,
    FakeOpenAI,
    ReceivedRequest,
    Script,
    delta,
    event,
    respond,
    send_chunk,
    send_error,
    send_head,
    send_stream,
    usage,
)
from hypothesis import given
from hypothesis import strategies as st

from blade_llm.benchmark.client.client import Client
from blade_llm.benchmark.client.measurement import Measurement
from blade_llm.benchmark.client.sse import EventParser
from blade_llm.benchmark.client.target import Target, parse_address
from blade_llm.benchmark.errors import BenchmarkError
from blade_llm.benchmark.workload.datasets import Sample

HELLO = Sample("hello there", 4)
CERTIFICATES = Path(__file__).parents[2] / "router_support" / "tls"


@asynccontextmanager
async def client_of(script: Script, **options: Any) -> AsyncIterator[tuple[FakeOpenAI, Client, Target]]:
    async with FakeOpenAI(script) as server:
        target = Target(address=parse_address(server.url), endpoint="chat", model="fake")
        client = Client(target.address, **options)
        try:
            yield server, client, target
        finally:
            client.close()


async def measure(script: Script, sample: Sample = HELLO, **options: Any) -> Measurement:
    async with client_of(script, **options) as (_, client, target):
        return await client.measure(target, sample, client.clock())


def streaming(*pieces: bytes) -> Script:
    async def script(request: ReceivedRequest, writer: Writer) -> None:
        await send_stream(writer, pieces)

    return script


class SteppedClock:
    """Stands still until the server moves it; records when the client has read it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.read = asyncio.Event()

    def __call__(self) -> float:
        self.read.set()
        return self.now


async def test_times_are_those_of_the_events() -> None:
    clock = SteppedClock()

    async def script(request: ReceivedRequest, writer: Writer) -> None:
        await send_head(writer)
        for at, piece in [(1.0, delta()), (3.0, delta("a")), (3.5, delta("b")), (5.0, delta("", "stop") + DONE)]:
            clock.now = at
            clock.read.clear()
            await send_chunk(writer, piece)
            await clock.read.wait()
        clock.now = 6.0
        await send_chunk(writer, b"")

    measured = await measure(script, clock=clock)
    assert measured.failure is None
    assert (measured.sent, list(measured.events), measured.ended) == (0.0, [3.0, 3.5], 6.0)


async def test_the_server_s_counts_win_over_events() -> None:
    measured = await measure(streaming(delta("three tokens at once"), delta("two more", "stop"), usage(17, 5), DONE))
    assert measured.failure is None
    assert (measured.input_tokens, measured.output_tokens, len(measured.events)) == (17, 5, 2)
    assert measured.counted_by_server


async def test_without_usage_events_are_counted() -> None:
    measured = await measure(streaming(delta(), delta("a"), delta("b"), delta("", "stop"), DONE), Sample("x", 4, 9))
    assert (measured.input_tokens, measured.output_tokens, measured.counted_by_server) == (9, 2, False)


async def test_reasoning_and_tool_calls_are_tokens_too() -> None:
    thinking = event(choices=[{"delta": {"reasoning_content": "hm"}}])
    calling = event(choices=[{"delta": {"tool_calls": [{"index": 0}]}}])
    measured = await measure(streaming(delta(), thinking, calling, delta("", "tool_calls"), DONE))
    assert len(measured.events) == 2


@pytest.mark.parametrize(("status", "message"), [(429, "too many requests"), (500, "out of order"), (503, "not yet")])
async def test_refusals_are_counted_by_status(status: int, message: str) -> None:
    async def script(request: ReceivedRequest, writer: Writer) -> None:
        await send_error(writer, status, message)

    measured = await measure(script)
    assert measured.failure is not None
    assert (measured.failure.kind, measured.failure.detail) == (f"HTTP {status}", message)


async def test_a_stream_that_ends_without_a_finish_reason_is_cut() -> None:
    measured = await measure(streaming(delta("a"), delta("b")))
    assert measured.failure is not None
    assert measured.failure.kind == "stream cut"
    assert "2 events" in measured.failure.detail


async def test_a_connection_that_breaks_in_a_stream_is_cut() -> None:
    async def script(request: ReceivedRequest, writer: Writer) -> None:
        await send_head(writer)
        await send_chunk(writer, delta("a"))
        writer.close()

    measured = await measure(script)
    assert measured.failure is not None
    assert measured.failure.kind == "stream cut"


async def test_a_connection_that_breaks_before_the_response() -> None:
    async def script(request: ReceivedRequest, writer: Writer) -> None:
        writer.transport.abort()

    measured = await measure(script)
    assert measured.failure is not None
    assert measured.failure.kind == "connection broken"


@pytest.mark.parametrize(
    ("pieces", "kind", "detail"),
    [
        ([delta("a"), event(error={"message": "ran out of memory"}), DONE], "error in the stream", "ran out of memory"),
        ([delta("a"), b"data: {oops\n\n", DONE], "malformed event", "oops"),
    ],
)
async def test_errors_within_the_stream(pieces: Sequence[bytes], kind: str, detail: str) -> None:
    measured = await measure(streaming(*pieces))
    assert measured.failure is not None
    assert measured.failure.kind == kind
    assert detail in measured.failure.detail


async def test_a_response_that_is_no_stream() -> None:
    async def script(request: ReceivedRequest, writer: Writer) -> None:
        await send_head(writer, content_type="application/json")
        await send_chunk(writer, json.dumps({"choices": []}).encode())
        await send_chunk(writer, b"")

    measured = await measure(script)
    assert measured.failure is not None
    assert measured.failure.kind == "not a stream"
    assert "application/json" in measured.failure.detail


async def test_what_is_not_http() -> None:
    async def script(request: ReceivedRequest, writer: Writer) -> None:
        writer.write(b"220 smtp.example ESMTP\r\n\r\n")

    measured = await measure(script)
    assert measured.failure is not None
    assert measured.failure.kind == "connection broken"
    assert "not HTTP" in measured.failure.detail


async def test_a_server_that_never_responds_times_out() -> None:
    async def script(request: ReceivedRequest, writer: Writer) -> None:
        await asyncio.Event().wait()

    measured = await measure(script, timeout=0.05)
    assert measured.failure is not None
    assert measured.failure.kind == "timeout"


async def test_nobody_listens() -> None:
    async with FakeOpenAI() as server:
        address = parse_address(server.url)
    client = Client(address)
    measured = await client.measure(Target(address=address, endpoint="chat", model="m"), HELLO, 0.0)
    assert measured.failure is not None
    assert measured.failure.kind == "cannot connect"
    with pytest.raises(BenchmarkError, match="--base_url"):
        await client.served_model(Target(address=address, endpoint="chat", model=""))


async def test_connections_are_kept() -> None:
    async with client_of(respond) as (server, client, target):
        for _ in range(5):
            assert (await client.measure(target, HELLO, 0.0)).failure is None
        assert server.connections == 1
        await asyncio.gather(*(client.measure(target, HELLO, 0.0) for _ in range(3)))
        assert server.connections == 3


async def test_a_kept_connection_that_the_server_has_closed_is_no_failure() -> None:
    async def script(request: ReceivedRequest, writer: Writer) -> None:
        if len(server.requests) == 2:
            writer.transport.abort()
        else:
            await respond(request, writer)

    async with client_of(script) as (server, client, target):
        for _ in range(2):
            assert (await client.measure(target, HELLO, 0.0)).failure is None
        assert (server.connections, len(server.requests)) == (2, 3)


async def test_a_response_that_ends_with_the_connection() -> None:
    async def script(request: ReceivedRequest, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        writer.write(delta("a") + delta("b", "stop") + DONE)
        writer.close()

    async with client_of(script) as (server, client, target):
        for _ in range(2):
            measured = await client.measure(target, HELLO, 0.0)
            assert measured.failure is None
            assert len(measured.events) == 2
        assert server.connections == 2


async def test_a_request_given_up_closes_its_connection() -> None:
    gone = asyncio.Event()

    async def script(request: ReceivedRequest, writer: Writer) -> None:
        await send_head(writer)
        started.set()
        try:
            while True:
                await send_chunk(writer, delta("x"))
                await asyncio.sleep(0)
        except ConnectionError:
            gone.set()

    started = asyncio.Event()
    async with client_of(script) as (_, client, target):
        task = asyncio.create_task(client.measure(target, HELLO, 0.0))
        await started.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await asyncio.wait_for(gone.wait(), 30)


async def test_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a certificate that is trusted, and with one that is not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem")
    async with FakeOpenAI(tls=context) as server:
        for trusted, kind in [("ca.crt", None), ("other.crt", "cannot connect")]:
            monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / trusted))
            address = parse_address(server.url)
            client = Client(address)
            measured = await client.measure(Target(address=address, endpoint="chat", model="m"), HELLO, 0.0)
            client.close()
            assert (measured.failure and measured.failure.kind) == kind


async def test_what_is_sent() -> None:
    async with client_of(respond) as (server, client, target):
        target = dataclasses.replace(target, api_key="secret", extra={"top_p": 0.5})
        await client.measure(target, HELLO, 0.0)
        target = dataclasses.replace(target, endpoint="completions", include_usage=False, ignore_eos=False)
        await client.measure(target, HELLO, 0.0)
    chat, text = server.requests
    assert chat.path == "/v1/chat/completions"
    assert chat.headers["authorization"] == "Bearer secret"
    assert chat.body == {
        "model": "fake",
        "messages": [{"role": "user", "content": "hello there"}],
        "max_tokens": 4,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "top_p": 0.5,
    }
    assert text.path == "/v1/completions"
    assert text.body["prompt"] == "hello there"
    assert not {"stream_options", "ignore_eos", "messages"} & set(text.body)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:81", "http://host:81/v1"),
        ("host:81/v1/", "http://host:81/v1"),
        ("https://host/api/openai/v1", "https://host/api/openai/v1"),
        ("http://[::1]:81", "http://[::1]:81/v1"),
    ],
)
def test_addresses(url: str, base: str) -> None:
    assert parse_address(url).url == base


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port"])
def test_bad_addresses(url: str) -> None:
    with pytest.raises(BenchmarkError, match="--base_url"):
        parse_address(url)


@given(st.lists(st.integers(1, 60), max_size=12), st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_the_same_wherever_the_bytes_are_cut(cuts: list[int], end: bytes) -> None:
    lines = [
        b": keep-alive",
        b"",
        b'data: {"a": 1}',
        b"",
        b"event: x",
        b"data:two",
        b"data: lines",
        b"",
        b"data: [DONE]",
        b"",
    ]
    stream = end.join([*lines, b""])
    parser = EventParser()
    events = []
    rest = stream
    for cut in cuts:
        events += parser.feed(rest[:cut])
        rest = rest[cut:]
    assert events + parser.feed(rest) == [b'{"a": 1}', b"two\nlines", b"[DONE]"]


def test_an_event_is_given_only_when_it_is_whole() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\nda") == [b"a"]
