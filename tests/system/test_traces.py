"""One request, followed through router and engine: two programs, one trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_support.fake_engine import write_script
from engine_support.server_process import ServerProcess, running_server
from engine_support.tool_models import QWEN3, write_tool_model
from router_support.serving import serving
from telemetry_support.collector import Collector, Received, collecting

from blade_protocol.routing import EndpointConfig
from blade_telemetry import export

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Kiel"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[ServerProcess]:
    """Two API-server processes: spans come from whichever served."""
    folder = tmp_path_factory.mktemp("traced")
    model = write_tool_model(folder / "tools", QWEN3)
    write_script(model, ("weather", CALL))
    flags = ("--otlp_traces_endpoint", collector.url, "--api_server_count", "2", "--log_format", "json")
    flags += ("--collect_detailed_traces", "all")
    flags += ("--log_payloads", str(folder / "payloads.jsonl"), "--payload_redact", "Kiel")
    with running_server(folder / "server", model, *flags, engine="scripted") as server:
        yield server


def of_trace(collector: Collector, trace_id: str, count: int) -> dict[str, Received]:
    """The spans of one trace by name, once there are so many."""
    for _ in range(400):
        if len(found := [span for span in collector.spans if span.trace_id == trace_id]) >= count:
            return {span.name: span for span in found}
        collector.pause()
    raise AssertionError(sorted(span.name for span in collector.spans))


def payload_of(folder: Path, request_id: str) -> dict[str, Any]:
    """What the payload log of either process has of a request, once it is there."""
    for _ in range(200):
        for file in folder.glob("payloads*.jsonl"):
            for line in file.read_text().splitlines():
                record: dict[str, Any] = json.loads(line)
                if record["request_id"] == request_id:
                    return record
        Collector.pause()
    raise AssertionError(request_id)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_is_one_trace_from_the_client_to_the_tokens(
    engine: ServerProcess, collector: Collector, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "FLUSH_SECONDS", 0.05)
    endpoint = EndpointConfig(url=engine.url, name="engine-0", internal_url=engine.internal_url)
    body = {
        "messages": [{"role": "user", "content": "weather?"}],
        "tools": [TOOL],
        "temperature": 0.5,
        "stream": stream,
    }
    async with serving(wait=False, endpoints=(endpoint,), otlp_endpoint=collector.url) as router:
        trace_id = f"{1 + stream:032x}"
        traceparent = f"00-{trace_id}-00f067aa0ba902b7-01"
        response = await router.client.post(
            "/v1/chat/completions", json=body, headers={"traceparent": traceparent, "x-request-id": f"mine-{stream}"}
        )
        assert response.status_code == 200, response.text
        assert response.headers.get_list("x-trace-id") == [trace_id]
        spans = await asyncio.to_thread(of_trace, collector, trace_id, 6)
    # The engine has two spans named "queue" and the router one: look at them by their parents.
    server, attempt = spans["POST /v1/chat/completions"], spans["attempt engine-0"]
    generate = spans["chat tools"]
    assert server.parent_id == "00f067aa0ba902b7"
    assert attempt.parent_id == server.span_id
    assert generate.parent_id == attempt.span_id
    phases = [span for span in collector.spans if span.parent_id == generate.span_id]
    assert sorted(span.name for span in phases) == ["decode", "prefill", "queue"]
    queue, prefill, decode = (
        next(span for span in phases if span.name == name) for name in ("queue", "prefill", "decode")
    )
    assert generate.start <= queue.start <= queue.end <= prefill.end == decode.start <= decode.end <= generate.end
    assert attempt.start <= generate.start
    said = generate.attributes
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.provider.name"] == "bladellm"
    assert (said["gen_ai.request.model"], said["gen_ai.response.model"]) == ("tools", "tools")
    assert (said["gen_ai.request.temperature"], said["gen_ai.request.stream"]) == (0.5, stream)
    assert said["gen_ai.response.finish_reasons"] == ["stop"]
    assert said["gen_ai.usage.input_tokens"] > 0
    assert said["gen_ai.usage.output_tokens"] == decode.attributes["gen_ai.usage.output_tokens"] > 20
    assert said["blade.request_id"] == server.attributes["blade.request_id"] == f"mine-{stream}"
    assert said["server.address"] == "127.0.0.1"
    assert said["server.port"] == int(engine.url.rpartition(":")[2])
    assert generate.events["tool_call"] == {"gen_ai.tool.name": "weather"}
    assert (server.resource["service.name"], generate.resource["service.name"]) == ("blade_router", "blade_llm")
    assert not any(span.is_error for span in spans.values())
    record = await asyncio.to_thread(payload_of, engine.log.parents[1], f"mine-{stream}")
    assert record["trace_id"] == trace_id
    assert "weather?" in record["prompt"][0]
    assert record["output"] == [CALL.replace("Kiel", "[redacted]")]
    assert (record["model"], record["finish_reasons"], record["path"]) == ("tools", ["stop"], "/v1/chat/completions")


async def test_refusals_are_in_the_trace_and_in_no_log_line_of_others(
    engine: ServerProcess, collector: Collector
) -> None:
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as client:
        response = await client.post("/v1/chat/completions", json={"messages": 1}, headers={"traceparent": CLIENT})
        unsampled = await client.post(
            "/v1/chat/completions", json={"messages": 1}, headers={"traceparent": CLIENT[:-2] + "00"}
        )
        routed = await client.post("/v1/chat/completions", json={"messages": 1}, headers={"x-blade-comments": "0"})
        page = await client.get("/health", headers={"traceparent": CLIENT})
    assert (response.status_code, response.headers["x-trace-id"]) == (400, CLIENT.split("-")[1])
    assert unsampled.headers["x-trace-id"] == page.headers["x-trace-id"] == CLIENT.split("-")[1]
    assert "x-trace-id" not in routed.headers, "its router did not trace it"
    spans = await asyncio.to_thread(of_trace, collector, CLIENT.split("-")[1], 1)
    (refused,) = spans.values()
    assert refused.name == "POST /v1/chat/completions"
    assert (refused.attributes["http.response.status_code"], refused.attributes["error.type"]) == (400, "400")
    assert not refused.is_error, "it is the client's"


def test_the_engines_log_is_json(engine: ServerProcess) -> None:
    lines = [line for line in engine.output.splitlines() if line.startswith("{")]
    parsed: list[dict[str, Any]] = [json.loads(line) for line in lines]
    (warning,) = [line for line in parsed if "collect_detailed_traces" in line["message"]]
    assert (warning["level"], warning["logger"]) == ("WARNING", "blade_llm.cli.server")
    assert warning["time"].endswith("Z")
    assert "WARNING" not in "".join(line for line in engine.output.splitlines() if not line.startswith("{"))
