"""Every route of the API through the router: the service that gets it, its retries and the relay of its response."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from router_support.engine import MockEngine
from router_support.serving import eventually, question, serving

from blade_protocol import environment
from blade_protocol import headers as names
from blade_protocol.routing import EndpointConfig, EngineKind
from blade_router.resume import EventStream

BODIES: dict[str, Any] = {
    "/v1/chat/completions": question(),
    "/v1/completions": {"model": "m", "prompt": [1, 2, 3]},
    "/v1/responses": {"model": "m", "input": [{"role": "user", "content": "hi"}]},
    "/v1/embeddings": {"model": "m", "input": ["a", [1, 2]], "encoding_format": "base64"},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1, 2]},
}
POLICIES = ("auto", "round-robin", "least-request")
READ = ("/v1/models", "/v1/models/org/name", "/v1/responses/resp_1", "/version", "/openapi.json", "/docs")

ADMIN_PAGES = ("/metrics", "/metric", "/status", "/internal/signals")


@pytest.mark.parametrize("policy", POLICIES)
async def test_every_route_of_an_engine_reaches_one(policy: str) -> None:
    async with MockEngine("a") as engine, serving(engine, policy=policy) as router:
        for path, body in BODIES.items():
            response = await router.client.post(path, json=body)
            assert response.status_code == 200, path
            assert response.headers[names.ENDPOINT] == "a"
        for path in READ:
            assert (await router.client.get(f"{path}?x=1")).json()["data"] == [{"id": "a"}], path
        assert (await router.client.delete("/v1/responses/resp_1")).json()["path"] == "/v1/responses/resp_1"
    received = [(each.method, each.target) for each in engine.received]
    assert received == [
        *(("POST", path) for path in BODIES),
        *(("GET", f"{path}?x=1") for path in READ),
        ("DELETE", "/v1/responses/resp_1"),
    ]
    assert [json.loads(each.body) for each in engine.received[: len(BODIES)]] == list(BODIES.values())


async def test_health_and_metrics_are_the_routers_own() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        for path in ("/health", "/live", *ADMIN_PAGES):
            response = await router.admin.get(path)
            assert response.status_code == 200, path
            assert names.ENDPOINT not in response.headers
        for path in ("/health", "/live"):
            assert (await router.client.get(path)).json() == (await router.admin.get(path)).json()
        metrics = [(await router.admin.get(path)).text for path in ("/metrics", "/metric")]
        assert metrics[0].splitlines()[0] == metrics[1].splitlines()[0]
        assert (await router.client.get("/nothing")).status_code == 404
        assert (await router.client.get("/tokenize/x")).status_code == 404
    assert engine.received == []


async def test_what_shows_the_inside_is_on_the_admin_port_only() -> None:
    async with MockEngine("a") as engine, serving(engine, debug_routes=True) as router:
        for path in (*ADMIN_PAGES, "/internal/state", "/debug/route", "/metrics/", "/%6detrics", "//metrics"):
            for method in ("GET", "POST", "HEAD"):
                response = await router.client.request(method, path)
                assert response.status_code == 404, (method, path)
                assert "location" not in response.headers
        assert "its admin port" in (await router.client.get("/metrics")).json()["error"]["message"]
        assert (await router.admin.post("/debug/route", json=BODIES["/v1/chat/completions"])).status_code == 200
        for path in BODIES:
            assert (await router.admin.post(path, json=BODIES[path])).status_code == 404
    assert engine.received == []


@pytest.mark.parametrize("mode", ["reset", "reset-after-head", "status", "draining"])
async def test_every_route_goes_elsewhere_before_its_first_byte(mode: Any) -> None:
    for path, body in BODIES.items():
        for extra in ({}, {"stream": True}):
            async with MockEngine("good") as good, MockEngine("bad") as bad:
                async with serving(good, bad, policy="round-robin") as router:
                    bad.mode = mode
                    responses = [await router.client.post(path, json=body | extra) for _ in range(2)]
                assert {response.headers[names.ENDPOINT] for response in responses} == {"good"}, (path, extra)
                assert {response.status_code for response in responses} == {200}
                assert len(bad.received) == 1


@pytest.mark.parametrize("path", BODIES)
async def test_a_refusal_before_a_stream_keeps_its_status(path: str) -> None:
    async with MockEngine("a", mode="status", status=400) as engine, serving(engine) as router:
        response = await router.client.post(path, json=BODIES[path] | {"stream": True})
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["message"] == "a says 400"
    assert len(engine.received) == 1


@pytest.mark.parametrize(
    "body", [{"input": 7, "model": 7}, {"input": None}, [], "text", 1, {"model": None, "stream": None, "input": "x"}]
)
@pytest.mark.parametrize("policy", POLICIES)
async def test_what_the_router_cannot_judge_the_engine_does(body: Any, policy: str) -> None:
    async with MockEngine("a") as engine, serving(engine, policy=policy) as router:
        response = await router.client.post("/v1/embeddings", json=body)
    assert response.status_code == 200
    assert json.loads(engine.received[0].body) == body


async def test_named_events_pass_whole() -> None:
    async with MockEngine("a", tokens=4) as engine, serving(engine) as router:
        response = await router.client.post("/v1/responses", json=BODIES["/v1/responses"] | {"stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.content == b"".join(map(engine.response_event, range(4)))


async def test_a_response_that_breaks_off_ends_in_its_own_kind_of_error() -> None:
    async with MockEngine("a", tokens=4, mode="break") as engine, serving(engine) as router:
        response = await router.client.post("/v1/responses", json=BODIES["/v1/responses"] | {"stream": True})
    whole = b"".join(map(engine.response_event, range(3)))
    assert response.content.startswith(whole)
    name, _, data = response.content.removeprefix(whole).decode().partition("\n")
    assert name == "event: error"
    assert data.endswith("\n\n")
    error = json.loads(data.removeprefix("data: "))
    assert error.pop("message").startswith("the engine was lost in the middle of the answer (")
    assert error == {"type": "error", "code": "engine_lost", "param": None, "sequence_number": 3}


@pytest.mark.parametrize("name", ["response.completed", "response.incomplete", "response.failed", "error"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_response_that_had_ended_is_left_as_it_is(name: str, end: str) -> None:
    stream = EventStream()
    first = f'event: response.created{end}data: {{"sequence_number":0}}{end}{end}'.encode()
    stream.feed(first + f'event: {name}{end}data: {{"sequence_number":1}}{end}{end}'.encode())
    assert stream.broken("reset") == b""
    stream.feed(first)
    assert b'"sequence_number":1' in stream.broken("reset")


async def test_the_router_identifies_itself_to_our_engines_and_to_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("s3cret")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(tmp_path / "token"))
    kinds: tuple[EngineKind, ...] = ("blade", "vllm", "sglang")
    for kind in kinds:
        async with MockEngine("a") as engine:
            endpoints = (EndpointConfig(url=engine.url, name="a", engine=kind),)
            async with serving(wait=False, endpoints=endpoints) as router:
                await eventually(lambda: router.router.endpoints.usable_count() == 1)
                forged = {names.INTERNAL_TOKEN: "forged"}
                for path, body in BODIES.items():
                    await router.client.post(path, json=body, headers=forged)
                await router.client.get("/v1/models", headers=forged)
                sent = [each.header(names.INTERNAL_TOKEN) for each in engine.received]
        assert len(sent) >= len(BODIES) + 1
        assert all(tokens == (["s3cret"] if kind == "blade" else []) for tokens in sent), kind


async def test_the_list_of_models_is_queried_with_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("s3cret")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(tmp_path / "token"))
    async with MockEngine("a") as engine:
        config = tmp_path / "router.json"
        config.write_text(json.dumps({"endpoints": [{"url": engine.url}], "models": [{"name": "m"}]}))
        async with serving(wait=False, config=config) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 1)
            await router.client.get("/v1/models")
        assert [each.header(names.INTERNAL_TOKEN) for each in engine.received] == [["s3cret"]]
