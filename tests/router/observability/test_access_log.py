"""What the access log and the traces record of a request, and what they never record."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from router_support.engine import MockEngine
from router_support.raw import BODY, connected, get, post
from router_support.serving import eventually, serving

from blade_router.arguments import parse_arguments
from blade_router.observability import tracing

PARENT = "4bf92f3577b34da6a3ce929d0e0e4736"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_line_records_request_endpoint_and_cost(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    async with MockEngine("good") as good, MockEngine("bad", mode="reset") as bad:
        async with (
            serving(good, bad, policy="round-robin", access_log=str(path)) as router,
            connected(router.port) as client,
        ):
            for _ in range(2):
                client.send(
                    post(
                        BODY, b"authorization: Bearer secret", b"x-request-id: mine", path=b"/v1/completions?key=secret"
                    )
                )
                response = await client.response()
            client.send(post(b"{"))
            await client.response()
    first, second, refused = lines(path)
    assert "secret" not in path.read_text()
    assert "hello" not in path.read_text(), "no prompt"
    assert (first["method"], first["path"], first["status"], first["id"]) == ("POST", "/v1/completions", 200, "mine")
    assert (first["endpoint"], first["model"]) == ("good", "mock")
    assert first["bytes_in"] == len(BODY)
    assert first["bytes_out"] == len(response.body)
    assert (first["prompt_tokens"], first["completion_tokens"]) == (1, 1)
    assert 0 < first["ttft"] <= first["duration"]
    assert first["time"].endswith("Z")
    assert {first["tries"], second["tries"]} == {1, 2}
    assert {first["reason"], second["reason"]} == {"round-robin", "round-robin retry=reset"}
    assert refused["status"] == 400
    assert "endpoint" not in refused


async def test_a_client_that_left_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    gate = asyncio.Semaphore(0)
    async with MockEngine("a", gate=gate) as engine, serving(engine, access_log=str(path)) as router:
        async with connected(router.port) as client:
            client.send(post())
            await eventually(lambda: engine.active == 1)
        await eventually(path.exists)
    (line,) = lines(path)
    assert (line["status"], line["bytes_out"], line["endpoint"]) == (499, 0, "a")
    assert "ttft" not in line


async def test_a_rotated_log_is_reopened(tmp_path: Path) -> None:
    path, old = tmp_path / "access.log", tmp_path / "access.log.1"
    async with MockEngine("a") as engine, serving(engine, access_log=str(path)) as router:
        await router.chat()
        await eventually(path.exists)
        path.rename(old)
        await router.chat()
        await eventually(path.exists)
    assert len(lines(path)) == len(lines(old)) == 1


async def test_a_log_that_cannot_be_written_costs_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with MockEngine("a") as engine, serving(engine, access_log=str(tmp_path / "no" / "access.log")) as router:
        assert (await router.chat()).status_code == 200
        await eventually(lambda: "cannot be written" in caplog.text)
        assert (await router.chat()).status_code == 200


@asynccontextmanager
async def collector(received: list[dict[str, Any]], status: list[int]) -> AsyncIterator[str]:
    """An OTLP receiver, which responds with ``status[0]``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("POST /v1/traces HTTP/1.1\r\n")
        assert "content-type: application/json" in head
        body = await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
        if status[0] == 200:
            received.append(json.loads(body))
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 2\r\n\r\n{}" % status[0])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


def spans(received: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [span for each in received for span in each["resourceSpans"][0]["scopeSpans"][0]["spans"]]


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


async def test_spans_join_the_clients_trace_and_reach_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.01)
    received: list[dict[str, Any]] = []
    async with MockEngine("a") as engine, collector(received, [200]) as url:
        async with serving(engine, otlp_endpoint=url) as router, connected(router.port) as client:
            client.send(post(BODY, f"traceparent: 00-{PARENT}-00f067aa0ba902b7-01".encode(), b"tracestate: a=b"))
            await client.response()
            client.send(post())
            await client.response()
            client.send(post(BODY, f"traceparent: 00-{PARENT}-00f067aa0ba902b7-00".encode()))
            await client.response()
            client.send(post(BODY, b"traceparent: 00-" + b"0" * 32 + b"-00f067aa0ba902b7-01", b"tracestate: a=b"))
            await client.response()
            client.send(get(b"/live"))
            await client.response()
            await eventually(lambda: len(spans(received)) == 3)
    joined, begun, replaced = spans(received)
    assert (joined["traceId"], joined["parentSpanId"]) == (PARENT, "00f067aa0ba902b7")
    assert joined["name"] == "POST /v1/chat/completions"
    assert int(joined["startTimeUnixNano"]) < int(joined["endTimeUnixNano"])
    recorded = attributes(joined)
    assert (recorded["http.response.status_code"], recorded["blade.endpoint"]) == ("200", "a")
    assert (recorded["gen_ai.request.model"], recorded["gen_ai.usage.input_tokens"]) == ("mock", "1")
    assert begun["parentSpanId"] == replaced["parentSpanId"] == ""
    assert len({joined["traceId"], begun["traceId"], replaced["traceId"]}) == 3

    first, second, unsampled, invalid = engine.received
    assert first.header("traceparent") == [f"00-{PARENT}-{joined['spanId']}-01"]
    assert first.header("tracestate") == ["a=b"]
    assert second.header("traceparent") == [f"00-{begun['traceId']}-{begun['spanId']}-01"]
    assert unsampled.header("traceparent") == [f"00-{PARENT}-00f067aa0ba902b7-00"], "as it came, and no span"
    assert invalid.header("tracestate") == [], "it belongs to a trace that is none"


async def test_without_a_collector_the_context_only_passes() -> None:
    async with MockEngine("a") as engine, serving(engine) as router, connected(router.port) as client:
        client.send(post(BODY, b"traceparent: 00-odd-odd-00", b"tracestate: a=b") + post())
        for _ in range(2):
            await client.response()
    assert engine.received[0].header("traceparent") == ["00-odd-odd-00"]
    assert engine.received[0].header("tracestate") == ["a=b"]
    assert engine.received[1].header("traceparent") == []


async def test_a_collector_that_is_away_gets_the_spans_later_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(tracing, "MAX_PENDING", 2)
    received: list[dict[str, Any]] = []
    status = [503]
    with caplog.at_level(logging.WARNING, "blade_router.tracing"):
        async with MockEngine("a") as engine, collector(received, status) as url:
            async with serving(engine, otlp_endpoint=url) as router:
                for _ in range(3):
                    assert (await router.chat()).status_code == 200
                await eventually(lambda: ": status 503" in caplog.text)
                status[0] = 200
                await eventually(lambda: len(spans(received)) == 2)
                await eventually(lambda: "1 spans were dropped" in caplog.text)
        assert caplog.text.count(": status 503") == 1, "logged once"


def test_a_collector_that_is_no_url_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--endpoints", "http://a:1", "--otlp_endpoint", "collector:4317"])
    assert "is not the URL of a collector" in capsys.readouterr().err
