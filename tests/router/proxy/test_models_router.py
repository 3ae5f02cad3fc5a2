"""Several models behind one router: aliases, bounds, adapters and keys, and one list of all of them."""

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from router_support.engine import MockEngine
from router_support.serving import Running, eventually, serving


@contextlib.asynccontextmanager
async def two_services(
    tmp_path: Path, keys: Path | None = None
) -> AsyncIterator[tuple[Running, MockEngine, MockEngine]]:
    async with MockEngine("small") as small, MockEngine("large") as large:
        config = tmp_path / "router.json"
        content = {
            "endpoints": [
                {"url": small.url, "name": "small", "service": "a"},
                {"url": large.url, "name": "large", "service": "b"},
            ],
            "models": [
                {"name": "m-small", "service": "a", "aliases": ["default"], "limits": {"requests_per_minute": 2}},
                {"name": "m-large", "service": "b", "max_tokens": 10, "defaults": {"temperature": 0.5}},
            ],
        }
        write(config, content)
        async with serving(wait=False, config=config, keys=keys) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 2)
            yield router, small, large


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


async def post_chat(
    router: Running, model: str | None, headers: dict[str, str] | None = None, **body: Any
) -> httpx.Response:
    named = {} if model is None else {"model": model}
    return await router.client.post("/v1/chat/completions", json=named | body, headers=headers)


async def test_requests_go_to_the_service_of_their_model(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (router, small, large):
        for model, engine, requested in (
            ("m-small", small, "m-small"),
            ("default", small, "m-small"),
            ("m-large", large, "m-large"),
        ):
            response = await post_chat(router, model)
            assert response.headers["x-blade-endpoint"] == engine.name
            assert json.loads(engine.received[-1].body)["model"] == requested
        assert json.loads(large.received[-1].body)["temperature"] == 0.5
        assert engine.received[-1].header("content-length") == [str(len(large.received[-1].body))]


async def test_names_that_nobody_knows(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (router, _, _):
        unknown = await post_chat(router, "gpt-9")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        assert "`gpt-9`" in unknown.json()["error"]["message"]
        nameless = await post_chat(router, None)
        assert (nameless.status_code, nameless.json()["error"]["code"]) == (400, "missing_model")
        assert (await post_chat(router, "m-large", max_tokens=11)).status_code == 400


async def test_limits_hold_for_who_names_no_model_and_on_no_odd_path(tmp_path: Path) -> None:
    config = tmp_path / "router.json"
    async with MockEngine("a") as engine:
        models = [{"name": "m", "max_tokens": 10, "limits": {"requests_per_minute": 2}}]
        write(config, {"models": models})
        async with serving(engine, config=config) as router:
            assert (await post_chat(router, None, max_tokens=11)).status_code == 400
            for path in ("/v1/chat/completion%73", "/v1//chat/completions"):
                odd = await router.client.post(path, json={})
                assert (odd.status_code, odd.json()["error"]["code"]) == (400, "invalid_path")
            assert (await router.client.get("/v1/model%73")).status_code == 400
            responses = [await post_chat(router, None), await post_chat(router, ""), await post_chat(router, None)]
            assert [response.status_code for response in responses] == [200, 200, 429]
            assert json.loads(engine.received[0].body)["max_tokens"] == 10


async def test_a_model_that_only_its_engines_list(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (router, _, large):
        response = await post_chat(router, "large")  # the mock engine lists its own name
        assert (response.status_code, response.headers["x-blade-endpoint"]) == (200, "large")
        assert json.loads(large.received[-1].body)["model"] == "large"


async def test_limits_of_a_model_are_for_everybody(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (router, _, _):
        responses = [await post_chat(router, model) for model in ("m-small", "default", "m-small", "m-large")]
        assert [response.status_code for response in responses] == [200, 200, 429, 200]
        assert "model m-small" in responses[2].json()["error"]["message"]


async def test_one_list_of_all_models(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (router, _, _):
        router.router.endpoints.all[1].report.adapters = frozenset({"lora"})
        cards = (await router.client.get("/v1/models")).json()
        assert cards["object"] == "list"
        by_name = {card["id"]: card for card in cards["data"]}
        assert list(by_name) == ["m-small", "default", "m-large", "small", "large", "lora"]
        assert by_name["default"]["root"] == "m-small"
        assert by_name["lora"]["parent"] == "large"
        assert (await router.client.get("/v1/models/default")).json() == by_name["default"]
        missing = await router.client.get("/v1/models/org/none")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        assert (await post_chat(router, "lora")).headers["x-blade-endpoint"] == "large"


async def test_keys_see_and_use_their_models_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    entry = {"name": "a", "sha256": hashlib.sha256(b"sk-a").hexdigest(), "models": ["default", "lora"]}
    (keys / "file").write_text(json.dumps({"keys": [entry]}))
    headers = {"x-api-key": "sk-a"}
    async with two_services(tmp_path, keys) as (router, _, _):
        router.router.endpoints.all[1].report.adapters = frozenset({"lora", "other"})
        cards = (await router.client.get("/v1/models", headers=headers)).json()["data"]
        assert [card["id"] for card in cards] == ["m-small", "default", "lora"]
        assert (await router.client.get("/v1/models/m-large", headers=headers)).status_code == 404
        responses = {
            name: await post_chat(router, name, headers) for name in ("m-small", "lora", "m-large", "other", "none")
        }
        assert [response.status_code for response in responses.values()] == [200, 200, 404, 404, 404]
        assert responses["m-large"].json()["error"]["message"] == responses["none"].json()["error"]["message"].replace(
            "none", "m-large"
        )


async def test_a_router_that_adds_nothing_lets_an_engine_list(tmp_path: Path) -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        assert (await router.client.get("/v1/models")).json() == {"object": "list", "data": [{"id": "a"}]}
        assert (await router.client.get("/v1/models")).headers["x-blade-endpoint"] == "a"


async def test_engines_that_do_not_respond_leave_what_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blade_router.proxy.model_list.FRESH_SECONDS", 0.0)
    async with two_services(tmp_path) as (router, small, _):
        before = (await router.client.get("/v1/models")).json()
        await small.kill()
        assert (await router.client.get("/v1/models")).json() == before


async def test_several_services_by_flag(tmp_path: Path) -> None:
    async with MockEngine("x") as x, MockEngine("y") as y:
        files = []
        for name, engine in (("svc-x", x), ("svc-y", y)):
            files.append(tmp_path / f"{name}.json")
            write(files[-1], {"endpoints": [{"url": engine.url, "name": engine.name}]})
        async with serving(wait=False, services=tuple(files)) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 2)
            assert {endpoint.config.service for endpoint in router.router.endpoints.all} == {"svc-x", "svc-y"}
            assert (await post_chat(router, "y")).headers["x-blade-endpoint"] == "y"
            assert (await post_chat(router, "z")).status_code == 404
            assert set((await router.status())["sources"]) == {"service svc-x", "service svc-y"}
