"""The paths that are forwarded: an engine gets what belongs to inference, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from router_support import keys
from router_support.engine import MockEngine
from router_support.serving import serving

from blade_protocol.routing import EndpointConfig, EngineKind
from blade_router.admission.keys import parse_keys
from blade_router.config.parsing import ConfigError
from blade_router.http.errors import Refused
from blade_router.request.routes import BY_KIND, check_kinds, check_route

ADMIN = (
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/v1/adapters", "/v1/internal/state"),
    *("/sleep", "/wake_up", "/is_sleeping", "/reset_prefix_cache", "/collective_rpc", "/start_profile", "/v1/sleep"),
    *("/flush_cache", "/abort_request", "/update_weights_from_disk", "/get_server_info", "/generate", "/invocations"),
    *("/v1/loads", "/v1/start_profile", "/internal/drain", "/internal/resume", "/server_info", "/scale_elastic_ep"),
)
TRICKS = (
    *("/v1//load_lora_adapter", "/v1/./load_lora_adapter", "/v1/../sleep", "/v1/models/../load_lora_adapter"),
    *("/v1/%6coad_lora_adapter", "/v1%2fload_lora_adapter", "/v1/models/%2e%2e/load_lora_adapter", "/V1/completions"),
    *("/v1/models/..%2fload_lora_adapter", "/v1/completions/../load_lora_adapter", "/v1/responses/../sleep"),
    *("/v1/responses/a/b", "/v1/responses/%2e%2e/sleep", "/v1/load_lora_adapter/", "/v1/"),
    *("/v1/load_lora_adapter;x", "/v1/completions;/../sleep", "/v1/load_lora_adapter?x=/v1/completions"),
    *("/tokenize/../sleep", "/docs/../sleep", "//v1/load_lora_adapter", "/v1\\load_lora_adapter", "/v1/completions%00"),
)


@pytest.mark.parametrize("kind", BY_KIND)
async def test_no_administration_of_an_engine_is_forwarded(kind: EngineKind) -> None:
    async with MockEngine("a") as engine:
        config = EndpointConfig(url=engine.url, name="a", engine=kind)
        async with serving(endpoints=(config,), wait=False) as router:
            for path in ADMIN + TRICKS:
                for method in ("POST", "GET", "DELETE"):
                    response = await router.client.request(
                        method, "/", json={"model": "m"}, extensions={"target": path.encode()}
                    )
                    assert response.status_code in (400, 404, 405), (method, path)
                    assert "error" in response.json(), (method, path)
    inference = {"/metrics", "/v1/models", "/health", "/internal/events", "/internal/state"}
    assert {each.target for each in engine.received} <= inference, "what remains is the router's own"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", path) for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")),
        *(("POST", path) for path in ("/tokenize", "/detokenize", "/v1/score", "/score", "/v1/rerank", "/rerank")),
        *(("POST", path) for path in ("/v1/classify", "/v1/messages", "/v1/responses/input_tokens")),
        *(("GET", path) for path in ("/v1/models", "/v1/models/org/name", "/v1/models/o%2Fn", "/version", "/docs")),
        *((method, "/v1/responses/resp_0-1.a") for method in ("GET", "DELETE")),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
    ],
)
def test_inference_is_forwarded(method: str, path: str) -> None:
    check_route(method, path)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/completions", "POST"),
        ("DELETE", "/v1/models/m", "GET, HEAD"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("POST", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("GET", "/v1/responses/resp_1/cancel", "POST"),
    ],
)
def test_a_path_has_its_methods(method: str, path: str, allowed: str) -> None:
    with pytest.raises(Refused, match=f"use {allowed}$") as refused:
        check_route(method, path)
    assert refused.value.status == 405
    assert (b"allow", allowed.encode()) in refused.value.headers


def test_a_service_has_the_paths_of_all_its_engines() -> None:
    check_kinds("/v1/score", {"vllm", "sglang", "blade"})
    check_kinds("/rerank", {"vllm", "blade"})
    check_kinds("/v1/classify", {"vllm", "sglang"})
    check_kinds("/v1/completions", {"vllm", "blade"})
    check_kinds("/v1/classify", ())  # none is known yet: the request may wait for one
    for path, kinds in (("/v1/classify", {"vllm", "blade"}), ("/v1/tokenize", {"vllm"}), ("/score", {"sglang"})):
        with pytest.raises(Refused, match=f"there is no {path} here"):
            check_kinds(path, kinds)


async def test_what_other_engines_have_is_not_sent_to_this_one() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        response = await router.client.post("/v1/classify", json={"model": "m"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    assert engine.received == []


async def test_a_response_is_cancelled_without_a_body() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        assert (await router.client.post("/v1/responses/resp_1/cancel")).status_code == 200
        odd = await router.client.request("DELETE", "/v1/responses/resp_1", content=b"\xff")
    assert odd.status_code == 400
    assert [each.target for each in engine.received] == ["/v1/responses/resp_1/cancel"]


async def test_a_key_may_be_for_some_paths_only(tmp_path: Any) -> None:
    file = tmp_path / "keys.json"
    keys.write(file, keys.content(keys.key(paths=["/v1/embeddings"])))
    headers = {"authorization": f"Bearer {keys.SECRET}"}
    async with MockEngine("a") as engine, serving(engine, keys=file) as router:
        allowed = await router.client.post("/v1/embeddings", json={"model": "m", "input": "x"}, headers=headers)
        refused = await router.client.post("/v1/completions", json={"model": "m", "prompt": "x"}, headers=headers)
        listed = await router.client.get("/v1/models", headers=headers)
    assert (allowed.status_code, listed.status_code) == (200, 200)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "path_not_allowed")


@pytest.mark.parametrize("path", ["v1/embeddings", "/v1/", ""])
def test_a_path_of_a_key_is_checked(path: str) -> None:
    with pytest.raises(ConfigError, match="is no path, for example /v1/embeddings"):
        parse_keys({"keys": keys.content(keys.key(paths=[path])).encode()})
