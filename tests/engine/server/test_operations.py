"""Health, models, metrics, the internal port, and clients that leave."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest
from engine_support.exposition import read_exposition
from engine_support.server_process import ServerProcess, running_server, wait_until

from blade_llm.api.metrics.names import VLLM
from blade_protocol import environment, headers, metrics
from blade_protocol.state import EngineState

LONG = {"prompt": "hello", "max_tokens": 2000, "ignore_eos": True}


def test_health_live_version_models(server: ServerProcess) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert httpx.get(f"{server.url}/ready").status_code == 200
    assert httpx.get(f"{server.url}/live").status_code == 200
    assert httpx.get(f"{server.url}/version").json()["version"]
    (model,) = server.client.models.list().data
    assert model.id == "tiny-chat"
    assert server.client.models.retrieve("tiny-chat").id == "tiny-chat"
    schema = httpx.get(f"{server.url}/openapi.json").json()
    body = schema["components"]["schemas"]["ChatRequest"]
    assert "temperature" in body["properties"]
    assert "messages" in body["required"]


def test_the_model_may_be_left_out_or_given_as_the_path(server: ServerProcess, text_model: Path) -> None:
    for fields in ({}, {"model": str(text_model)}):
        response = server.post("/v1/completions", prompt="x", max_tokens=1, **fields)
        assert response.json()["model"] == "tiny-chat"


@pytest.mark.parametrize("given", ["a/b-c:1", "bad id", "x" * 200])
def test_request_ids_are_kept_or_made(server: ServerProcess, given: str) -> None:
    response = httpx.get(f"{server.url}/health", headers={headers.REQUEST_ID: given})
    assert (response.headers[headers.REQUEST_ID] == given) == (given == "a/b-c:1")


def test_metrics(tmp_path: Path, text_model: Path) -> None:
    """Of a server that has answered nothing before: of others earlier requests might count late."""
    generated = f"{metrics.ENGINE_GENERATION_TOKENS}_total"
    with running_server(tmp_path, text_model) as server:

        def read(path: str) -> dict[str, float]:
            return read_exposition(httpx.get(server.url + path).text)

        server.post("/v1/completions", prompt="x", max_tokens=5, ignore_eos=True)
        wait_until(lambda: read("/metrics")[generated] == 5)
        after = read("/metric")
        for name in (metrics.ENGINE_TTFT, metrics.ENGINE_TPOT, metrics.ENGINE_E2E):
            assert after[f"{name}_count"] == 1
        assert after[metrics.ENGINE_REQUESTS + '_total{finished_reason="length"}'] == 1
        assert after[metrics.ENGINE_KV_BLOCKS] == 1024
        assert after["process_resident_memory_bytes"] > 0


def test_metrics_bear_the_models_name_and_on_request_vllms(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model, "--metric_aliases", "vllm") as server:
        server.post("/v1/completions", prompt="x", max_tokens=5, ignore_eos=True)
        text = httpx.get(f"{server.url}/metrics").text
    model = 'model_name="tiny-chat"'
    assert f"{metrics.ENGINE_E2E}_count{{{model}}} 1.0" in text
    found = read_exposition(text)
    for ours, theirs in VLLM.items():
        if f"# TYPE {ours}" not in text:
            continue  # of adapters and drafts, which this server has none of
        for name in (f"vllm:{each}" for each in theirs):
            assert f"# TYPE {name}" in text
            pattern = re.compile(rf"{ours}(_bucket|_sum|_count|_total)?({{|$)")
            pairs = [(key, value) for key, value in found.items() if pattern.match(key)]
            assert pairs
            for key, value in pairs:
                labels = '{engine="0"' + ("," + key.partition("{")[2] if "{" in key else "}")
                assert found[name + key.partition("{")[0].removeprefix(ours) + labels] == value


def test_the_phases_of_a_request_add_up(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model) as server:
        server.post("/v1/completions", prompt="x", max_tokens=5, ignore_eos=True)
        found = read_exposition(httpx.get(f"{server.url}/metrics").text)
    queue, prefill, decode, inference, ttft, tpot, gaps = (
        found[f"{name}_sum"]
        for name in (
            metrics.ENGINE_QUEUE_TIME,
            metrics.ENGINE_PREFILL_TIME,
            metrics.ENGINE_DECODE_TIME,
            metrics.ENGINE_INFERENCE_TIME,
            metrics.ENGINE_TTFT,
            metrics.ENGINE_TPOT,
            metrics.ENGINE_ITL,
        )
    )
    assert min(queue, prefill, decode) > 0
    assert queue + prefill == pytest.approx(ttft)
    assert prefill + decode == pytest.approx(inference)
    assert decode == pytest.approx(4 * tpot) == pytest.approx(gaps)


def test_a_prompt_counts_once_whatever_its_outputs(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model) as server:
        body = {"max_tokens": 5, "ignore_eos": True, "n": 4}
        server.post("/v1/completions", prompt="x", **body)
        server.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], stream=True, **body)
        server.post("/v1/completions", prompt=["x", "y"], **body)
        found = read_exposition(httpx.get(f"{server.url}/metrics").text)
    for name in (metrics.ENGINE_TTFT, metrics.ENGINE_TPOT, metrics.ENGINE_PROMPT_LENGTH, metrics.ENGINE_DECODE_TIME):
        assert found[f"{name}_count"] == 4
    assert found[f"{metrics.ENGINE_OUTPUT_LENGTH}_sum"] == 4 * 4 * 5
    assert found[f"{metrics.ENGINE_LONGEST_OUTPUT}_sum"] == 4 * 5
    assert found[f"{metrics.ENGINE_ITL}_count"] == 4 * 4 * 4
    assert found[f"{metrics.ENGINE_E2E}_count"] == 3
    assert found[metrics.ENGINE_REQUESTS + '_total{finished_reason="length"}'] == 4


def test_the_state_is_the_protocols(server: ServerProcess) -> None:
    raw = httpx.get(f"{server.internal_url}/internal/state").content
    state = msgspec.json.decode(raw, type=EngineState)
    assert state.ready
    assert state.memory is not None
    assert state.kv_blocks_total == 1024


def test_internal_routes_are_not_public(server: ServerProcess) -> None:
    assert httpx.get(f"{server.url}/internal/state").status_code == 404


def test_events_report_work(server: ServerProcess) -> None:
    server.wait_idle()
    sequences, saw_running = [], False
    with httpx.stream("GET", f"{server.internal_url}/internal/events", timeout=30) as events:
        worker = threading.Thread(target=server.post, args=("/v1/completions",), kwargs={**LONG, "max_tokens": 100})
        worker.start()
        for line in events.iter_lines():
            if not line.startswith("data: "):
                continue
            state = msgspec.json.decode(line.removeprefix("data: "), type=EngineState)
            sequences.append(state.sequence)
            saw_running |= state.running == 1
            if saw_running and state.running == 0:
                break
        worker.join()
    assert sequences == sorted(set(sequences))
    assert len(sequences) >= 3


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(server: ServerProcess, stream: bool) -> None:
    def aborted() -> float:
        exposition = read_exposition(httpx.get(f"{server.url}/metrics").text)
        return exposition[metrics.ENGINE_REQUESTS + '_total{finished_reason="abort"}']

    total, before = server.wait_idle()["kv_blocks_total"], aborted()
    client = httpx.Client(timeout=30)
    if stream:
        request = client.build_request("POST", f"{server.url}/v1/completions", json={**LONG, "stream": True})
        response = client.send(request, stream=True)
        lines = response.iter_lines()
        next(lines)
        wait_until(lambda: server.state()["running"] == 1)
        response.close()
    else:
        with pytest.raises(httpx.ReadTimeout):
            client.post(f"{server.url}/v1/completions", json=LONG, timeout=0.5)
    state = server.wait_idle()
    assert state["kv_blocks_free"] == total
    assert state["running"] == 0
    wait_until(lambda: aborted() == before + 1)


def test_an_idle_engine_never_wakes(server: ServerProcess) -> None:
    """However busy the machine is, sooner or later it sleeps through half a second; one that polls never does."""
    server.wait_idle()
    process = psutil.Process(server.engine_pid)

    def slept() -> bool:
        before = process.num_ctx_switches(), process.cpu_times()
        time.sleep(0.5)
        return (process.num_ctx_switches(), process.cpu_times()) == before

    wait_until(slept)


def test_the_api_server_never_imports_torch(server: ServerProcess) -> None:
    def maps(pid: int) -> str:
        return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")

    assert "msgspec" in maps(server.process.pid), "loaded extension modules show"
    assert "libtorch" not in maps(server.process.pid)


def test_internal_token_and_drain(tmp_path: Path, text_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(token))
    monkeypatch.setenv(environment.REVISION, "rev-7")
    with running_server(tmp_path, text_model, "--served_model_name", "first", "second") as server:
        for path in ("state", "events", "kv"):
            assert httpx.get(f"{server.internal_url}/internal/{path}").status_code == 401
        client = httpx.Client(base_url=server.internal_url, headers={headers.INTERNAL_TOKEN: "s3cret"})
        assert client.get("/internal/state").json()["revision"] == "rev-7"
        assert [model.id for model in server.client.models.list().data] == ["first", "second"]
        assert server.post("/v1/completions", prompt="x", model="second").json()["model"] == "second"

        assert client.post("/internal/drain").json()["draining"] is True
        for response in (server.post("/v1/completions", prompt="x"), httpx.get(f"{server.url}/health")):
            _assert_draining(response)
        assert client.get("/internal/state").json()["ready"] is False
        assert client.post("/internal/drain", json={"draining": False}).json()["draining"] is False
        assert server.post("/v1/completions", prompt="x").status_code == 200
        assert client.post("/internal/drain", json={"draining": 5}).status_code == 400

        token.write_text("another\n")
        assert client.get("/internal/state").status_code == 200, "other pods see the new one later"
        assert client.get("/internal/state", headers={headers.INTERNAL_TOKEN: "another"}).status_code == 200


def _assert_draining(response: httpx.Response) -> None:
    assert response.status_code == 503
    assert response.headers[headers.DRAINING] == "1"
    assert int(response.headers["retry-after"]) >= 1
    error: dict[str, Any] = json.loads(response.content)["error"]
    assert error["code"] == "draining"


def test_a_slash_at_the_end_of_a_path_redirects_nobody(server: ServerProcess) -> None:
    """A redirect would name this engine's own address, and lead clients past the router."""
    for url, status in ((f"{server.url}/v1/completions/", 200), (f"{server.internal_url}/internal/drain/", 404)):
        response = httpx.post(url, json={"prompt": "x"})
        assert response.status_code == status
        assert "location" not in response.headers
