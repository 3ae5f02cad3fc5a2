"""Declared LoRA adapters: a 503 while no engine has one, and several that share a name by weight."""

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from router_support.engine import MockEngine
from router_support.serving import Running, eventually, serving

CANARY = ({"name": "sql-v1", "model": "sql", "weight": 3}, {"name": "sql-v2", "model": "sql", "weight": 1})


@contextlib.asynccontextmanager
async def two_engines(
    tmp_path: Path, adapters: Sequence[dict[str, Any]], keys: Path | None = None
) -> AsyncIterator[tuple[Running, MockEngine, MockEngine]]:
    """Engines ``a`` and ``b`` of one service with a model ``base``."""
    async with MockEngine("a") as a, MockEngine("b") as b:
        config = tmp_path / "router.json"
        endpoints = [{"url": engine.url, "name": engine.name} for engine in (a, b)]
        content = {"endpoints": endpoints, "models": [{"name": "base"}], "adapters": adapters}
        config.write_text(json.dumps(content))
        async with serving(wait=False, config=config, keys=keys) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 2)
            yield router, a, b


def have(router: Running, **adapters: str) -> None:
    """Say which adapters engines list, as their state would."""
    for endpoint in router.router.endpoints.all:
        endpoint.report.adapters = frozenset(adapters.get(endpoint.name, "").split())


async def complete(router: Running, model: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await router.client.post("/v1/completions", json={"model": model, "prompt": "x"}, headers=named)


def received(engine: MockEngine) -> Counter[str]:
    """The models that its requests named."""
    return Counter(json.loads(request.body)["model"] for request in engine.received if request.body)


async def test_a_declared_adapter_that_no_engine_has_is_a_503(tmp_path: Path) -> None:
    async with two_engines(tmp_path, [{"name": "sql"}]) as (router, a, b):
        response = await complete(router, "sql")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "adapter_not_loaded")
        assert "`sql`" in response.json()["error"]["message"]
        assert int(response.headers["retry-after"]) > 0
        assert not received(a) + received(b)
        have(router, b="sql")
        assert [(await complete(router, "sql")).headers["x-blade-endpoint"] for _ in range(4)] == ["b"] * 4
        have(router)  # the only engine that had it was restarted
        assert (await complete(router, "sql")).status_code == 503
        # What nobody declared is for the engines to decide.
        assert (await complete(router, "unknown")).status_code == 200
        assert (await complete(router, "base")).status_code == 200


async def test_an_adapter_whose_engines_failed_is_not_asked_of_others(tmp_path: Path) -> None:
    async with two_engines(tmp_path, [{"name": "sql"}]) as (router, a, b):
        have(router, a="sql")
        await a.kill()
        response = await complete(router, "sql")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engines_unavailable")
        assert not received(b)


async def test_adapters_share_a_name_by_weight(tmp_path: Path) -> None:
    async with two_engines(tmp_path, CANARY) as (router, a, b):
        have(router, a="sql-v1 sql-v2", b="sql-v1")
        for _ in range(40):
            assert (await complete(router, "sql")).status_code == 200
        assert received(a) + received(b) == {"sql-v1": 30, "sql-v2": 10}
        assert "sql-v2" not in received(b)
        for _ in range(3):
            await complete(router, "sql-v2")  # by its own name
        assert received(a)["sql-v2"] == 13


async def test_a_session_stays_with_an_adapter(tmp_path: Path) -> None:
    async with two_engines(tmp_path, [{**each, "weight": 1} for each in CANARY]) as (router, a, b):
        have(router, a="sql-v1 sql-v2", b="sql-v1 sql-v2")
        of_sessions = []
        for session in range(12):
            before = received(a) + received(b)
            for _ in range(4):
                await complete(router, "sql", x_session_id=f"session {session}")
            (found,) = (received(a) + received(b) - before).items()
            assert found[1] == 4
            of_sessions.append(found[0])
        assert len(set(of_sessions)) == 2


async def test_an_adapter_that_is_loaded_answers_for_one_that_is_not(tmp_path: Path) -> None:
    async with two_engines(tmp_path, CANARY) as (router, a, b):
        assert (await complete(router, "sql")).json()["error"]["code"] == "adapter_not_loaded"
        have(router, b="sql-v2")
        for _ in range(8):
            assert (await complete(router, "sql")).status_code == 200
        assert received(b) == {"sql-v2": 8}
        have(router, a="sql-v1", b="sql-v2")
        for _ in range(8):
            await complete(router, "sql")
        assert received(a)["sql-v1"] >= 6


async def test_an_adapter_without_weight_gets_nothing_by_that_name(tmp_path: Path) -> None:
    adapters = [CANARY[0], {**CANARY[1], "weight": 0}]
    async with two_engines(tmp_path, adapters) as (router, a, b):
        have(router, b="sql-v2")
        assert (await complete(router, "sql")).status_code == 503
        have(router, a="sql-v1", b="sql-v2")
        for _ in range(5):
            await complete(router, "sql")
        assert received(a) + received(b) == {"sql-v1": 5}


async def test_a_key_for_the_name_reaches_its_adapters_by_that_name_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    entry = {"name": "a", "sha256": hashlib.sha256(b"sk-a").hexdigest(), "models": ["sql"]}
    (keys / "file").write_text(json.dumps({"keys": [entry]}))
    async with two_engines(tmp_path, CANARY, keys) as (router, a, b):
        have(router, a="sql-v1", b="sql-v2")
        headers = {"x_api_key": "sk-a"}
        assert [(await complete(router, "sql", **headers)).status_code for _ in range(4)] == [200] * 4
        for name in ("sql-v1", "sql-v2", "base"):
            assert (await complete(router, name, **headers)).status_code == 404
        assert received(a) + received(b) == {"sql-v1": 3, "sql-v2": 1}
        listed = (await router.client.get("/v1/models", headers={"x-api-key": "sk-a"})).json()["data"]
        assert [card["id"] for card in listed] == ["sql"]
        assert listed[0]["parent"]


async def test_the_list_has_names_that_an_adapter_answers_to(tmp_path: Path) -> None:
    async with two_engines(tmp_path, [*CANARY, {"name": "other"}]) as (router, _, _):
        have(router, b="sql-v2")
        listed = (await router.client.get("/v1/models")).json()["data"]
        assert {card["id"] for card in listed if card.get("parent")} == {"sql", "sql-v2"}


async def test_a_name_of_a_model_means_the_model(tmp_path: Path) -> None:
    """However adapters are called: what the configuration had before goes on."""
    adapters = [{"name": "base"}, {"name": "sql", "model": "base"}, {"name": "x"}]
    async with two_engines(tmp_path, adapters) as (router, a, b):
        for _ in range(3):
            assert (await complete(router, "base")).status_code == 200
        assert received(a) + received(b) == {"base": 3}
        assert (await complete(router, "x")).json()["error"]["code"] == "adapter_not_loaded"


async def test_requests_are_counted_by_adapter(tmp_path: Path) -> None:
    async with two_engines(tmp_path, CANARY) as (router, _, _):
        have(router, a="sql-v1 sql-v2")
        for _ in range(4):
            await complete(router, "sql")
        metrics = router.router.metrics.render().decode()
        for name, count in (("sql-v1", 3), ("sql-v2", 1)):
            assert any(f'model="{name}"' in line and line.endswith(f" {count}.0") for line in metrics.splitlines())
