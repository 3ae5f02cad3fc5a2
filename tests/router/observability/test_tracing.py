"""The router's part of a trace: whose it joins, which it records, what its spans say, and what they cost others."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from router_support.engine import MockEngine
from router_support.raw import BODY, connected, get, post
from router_support.serving import eventually, serving
from telemetry_support.collector import Collector, collecting

from blade_router.arguments import parse_arguments
from blade_router.observability import tracing
from blade_telemetry import export
from blade_telemetry.spans import EndedSpan

PARENT = "4bf92f3577b34da6a3ce929d0e0e4736"
LOW = "4bf92f3577b34da60000000000000001"
"""A trace that every ratio above 0 records."""
CLIENT = "00f067aa0ba902b7"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(export, "FLUSH_SECONDS", 0.02)
    with collecting() as running:
        yield running


def parent(trace_id: str = PARENT, flags: str = "01") -> bytes:
    return f"traceparent: 00-{trace_id}-{CLIENT}-{flags}".encode()


async def test_spans_join_the_clients_trace_and_tell_where_its_time_went(collector: Collector) -> None:
    async with MockEngine("a") as engine, serving(engine, otlp_endpoint=collector.url) as router:
        async with connected(router.port) as client:
            client.send(post(BODY, parent(), b"tracestate: a=b", b"x-request-id: mine"))
            response = await client.response()
        await eventually(lambda: len(collector.spans) == 2)
    assert response.header("x-trace-id") == PARENT
    (server,), (attempt,) = map(collector.named, ("POST", "attempt"))
    assert {span.trace_id for span in collector.spans} == {PARENT}
    assert (server.parent_id, attempt.parent_id) == (CLIENT, server.span_id)
    assert (server.kind, attempt.kind) == (2, 3), "server and client"
    assert server.name == "POST /v1/chat/completions"
    assert server.start <= server.times["admitted"] == attempt.start <= attempt.end <= server.end
    assert attempt.start <= server.times["first_token"] <= server.end
    said = server.attributes
    assert said["http.response.status_code"] == 200
    assert (said["gen_ai.operation.name"], said["gen_ai.request.model"]) == ("chat", "mock")
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (1, 1)
    assert (said["blade.request_id"], said["client.address"]) == ("mine", "127.0.0.1")
    assert attempt.attributes["blade.endpoint"] == "a"
    assert attempt.attributes["blade.route_reason"].startswith("auto")
    assert server.resource["service.name"] == "blade_router"
    (received,) = engine.received
    assert received.header("traceparent") == [f"00-{PARENT}-{attempt.span_id}-01"], "engines are below the attempt"
    assert received.header("tracestate") == ["a=b"]


async def test_no_span_is_made_on_the_data_path(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    class Noted(EndedSpan):
        def __init__(self, *given: Any, **options: Any) -> None:
            threads.append(threading.current_thread())
            super().__init__(*given, **options)

    monkeypatch.setattr(tracing, "EndedSpan", Noted)
    async with MockEngine("a") as engine, serving(engine, otlp_endpoint=collector.url) as router:
        assert (await router.chat()).status_code == 200
        await eventually(lambda: len(collector.spans) == 2)
    assert len(threads) == 2
    assert threading.current_thread() not in threads


async def test_each_attempt_is_a_span_and_says_why_it_failed(collector: Collector) -> None:
    async with MockEngine("good") as good, MockEngine("bad", mode="reset") as bad:
        async with serving(good, bad, policy="round-robin", otlp_endpoint=collector.url) as router:
            for _ in range(2):
                assert (await router.chat()).status_code == 200
            await eventually(lambda: len(collector.named("POST")) == 2)
    (failed,) = collector.named("attempt bad")
    assert failed.is_error
    assert failed.attributes["error.type"] == "reset"
    after = next(span for span in collector.named("attempt good") if span.trace_id == failed.trace_id)
    assert (after.parent_id, after.is_error) == (failed.parent_id, False)
    assert after.attributes["blade.route_reason"] == "round-robin retry=reset"
    assert (failed.attributes["blade.attempt"], after.attributes["blade.attempt"]) == (1, 2)
    assert failed.end <= after.start


async def test_a_trace_begins_here_where_the_client_has_none(collector: Collector) -> None:
    async with MockEngine("a") as engine, serving(engine, otlp_endpoint=collector.url) as router:
        async with connected(router.port) as client:
            client.send(post())
            begun = await client.response()
            client.send(post(BODY, b"traceparent: 00-" + b"0" * 32 + b"-00f067aa0ba902b7-01", b"tracestate: a=b"))
            await client.response()
            client.send(get(b"/live"))
            await client.response()
        await eventually(lambda: len(collector.named("POST")) == 2)
    first, second = collector.named("POST")
    assert first.parent_id == second.parent_id == ""
    assert first.trace_id != second.trace_id
    assert begun.header("x-trace-id") == first.trace_id
    assert engine.received[1].header("tracestate") == [], "it belongs to a trace that is none"


async def test_a_client_decides_for_its_trace_and_the_ratio_for_others(collector: Collector) -> None:
    async with MockEngine("a") as engine:
        async with serving(engine, otlp_endpoint=collector.url, trace_sampling=0.0) as router:
            async with connected(router.port) as client:
                client.send(post(BODY, parent(flags="00")))
                unsampled = await client.response()
                client.send(post())
                begun = await client.response()
                client.send(post(BODY, parent(LOW)))
                await client.response()
            await eventually(lambda: len(collector.named("POST")) == 1)
    assert {span.trace_id for span in collector.spans} == {LOW}
    assert unsampled.header("x-trace-id") == PARENT
    assert engine.received[0].header("traceparent") == [f"00-{PARENT}-{CLIENT}-00"], "as it came"
    assert begun.header("x-trace-id") is None, "there is no trace"
    assert engine.received[1].header("traceparent") == []


async def test_the_environment_can_make_the_ratio_count_for_all(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.01")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=mine")
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        for trace_id, flags in ((PARENT, "01"), (LOW, "00")):
            client.send(post(BODY, parent(trace_id, flags)))
            await client.response()
        await eventually(lambda: len(collector.named("POST")) == 1)
    assert {span.trace_id for span in collector.spans} == {LOW}
    assert collector.spans[0].resource["deployment.environment.name"] == "test"
    assert collector.spans[0].resource["service.name"] == "mine"


async def test_without_tracing_the_context_passes_and_its_id_is_said(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    async with MockEngine("a") as engine, serving(engine, access_log=str(path)) as router:
        async with connected(router.port) as client:
            client.send(post(BODY, b"traceparent: 00-odd-odd-00", b"tracestate: a=b") + post())
            odd, without = await client.response(), await client.response()
            client.send(post(BODY, parent()))
            given = await client.response()
            client.send(post(b"{", parent(LOW)))
            refused = await client.response()
    first, second, third = engine.received
    assert (first.header("traceparent"), first.header("tracestate")) == (["00-odd-odd-00"], ["a=b"])
    assert second.header("traceparent") == []
    assert third.header("traceparent") == [f"00-{PARENT}-{CLIENT}-01"]
    assert odd.header("x-trace-id") is without.header("x-trace-id") is None
    assert given.header("x-trace-id") == PARENT
    assert (refused.status, refused.header("x-trace-id")) == (400, LOW), "errors say it, too"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("trace_id") for line in lines] == [None, None, PARENT, LOW]


async def test_requests_do_not_notice_a_collector_that_is_away(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(export, "TIMEOUT", 1.5)
    monkeypatch.setattr(export, "MAX_PENDING", 6)
    monkeypatch.setattr(export, "BATCH", 6)
    collector.status = 503
    with caplog.at_level(logging.WARNING):
        async with MockEngine("a") as engine, serving(engine, otlp_endpoint=collector.url) as router:
            for _ in range(4):
                assert (await router.chat()).status_code == 200
            tracer = router.router._tracer
            assert tracer is not None
            await eventually(lambda: tracer.export.dropped == 8)
            assert tracer.export.failed > 0, "the collector did not take them"
            assert await router.metric("blade_router_spans_dropped_total") == 8
            collector.status = 200
            assert (await router.chat()).status_code == 200
            await eventually(lambda: len(collector.spans) == 2)
    assert caplog.text.count("spans cannot be sent") == 1, "logged once"


async def test_one_that_never_responds_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "CLOSE_SECONDS", 0.1)
    release = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(20), MockEngine("a") as engine:
        async with serving(engine, otlp_endpoint=url) as router:
            assert (await router.chat()).status_code == 200
    release.set()
    server.close()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--otlp_endpoint", "collector:4317"], "is not the URL of a collector"),
        (["--otlp_traces_endpoint", "http://c:x"], "is not the URL of a collector"),
        (["--trace_sampling", "2"], "is no ratio from 0 to 1"),
        (["--log_format", "xml"], "invalid choice"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--endpoints", "http://a:1", *arguments])
    assert complaint in capsys.readouterr().err


def test_a_sampler_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "some")
    with pytest.raises(SystemExit):
        parse_arguments(["--endpoints", "http://a:1", "--otlp_endpoint", "http://collector:4318"])
    assert "OTEL_TRACES_SAMPLER=some is no sampler" in capsys.readouterr().err
