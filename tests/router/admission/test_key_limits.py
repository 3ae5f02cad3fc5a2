"""Limits of a key as its clients meet them, for every kind of body, and shared by several routers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from router_support.engine import MockEngine
from router_support.keys import BEARER, content, key, post_chat, write
from router_support.kubernetes import SLICES, FakeApi
from router_support.serving import eventually, question, serving


async def test_rate_limit_headers_of_a_key(keys_file: Path, engine: MockEngine) -> None:
    write(keys_file, content(key(requests_per_minute=2), key("b", "sk-b")))
    async with serving(engine, keys=keys_file) as router:
        first = await post_chat(router)
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        await post_chat(router)
        third = await post_chat(router)
        assert third.status_code == 429
        assert 1 <= int(third.headers["retry-after"]) <= 62
        assert third.headers["x-ratelimit-remaining-requests"] == "0"
        assert third.json()["error"]["code"] == "rate_limit_exceeded"
        other = await post_chat(router, "sk-b")
        assert other.status_code == 200
        assert "x-ratelimit-limit-requests" not in other.headers


async def test_tokens_are_settled_with_the_usage_of_the_response(keys_file: Path, engine: MockEngine) -> None:
    write(keys_file, content(key(tokens_per_minute=1000)))
    async with serving(engine, keys=keys_file) as router:
        for _ in range(5):  # each reserves more than half, and uses 2
            assert (await post_chat(router, max_tokens=600)).status_code == 200
        too_large = await post_chat(router, max_tokens=2000)
        assert too_large.status_code == 429
        assert "retry-after" not in too_large.headers
        assert too_large.headers["x-should-retry"] == "false"
        assert (await post_chat(router, max_tokens=300, n=3)).status_code == 200
        assert (await post_chat(router, max_tokens=300, n=4)).status_code == 429


async def test_a_stream_without_usage_counts_its_events(keys_file: Path, engine: MockEngine) -> None:
    write(keys_file, content(key(tokens_per_minute=1000)))
    engine.tokens = 250
    async with serving(engine, keys=keys_file) as router:
        assert (await post_chat(router, stream=True, max_tokens=900)).status_code == 200
        left = int((await post_chat(router, max_tokens=1)).headers["x-ratelimit-remaining-tokens"])
        assert 680 < left < 740


@pytest.mark.parametrize("extra", [{"max_tokens": 10**30}, {"n": 10**30}, {"max_tokens": -5, "n": -5}])
async def test_absurd_numbers_leave_limits_as_they_are(
    keys_file: Path, engine: MockEngine, extra: dict[str, Any]
) -> None:
    write(keys_file, content(key(requests_per_minute=100, concurrent=1), key("b", "sk-b", tokens_per_minute=1000)))
    async with serving(engine, keys=keys_file) as router:
        for _ in range(2):
            assert (await post_chat(router, **extra)).status_code == 200
        assert (await post_chat(router, "sk-b", **extra)).status_code == (200 if extra.get("n", 1) < 0 else 429)
        assert (await post_chat(router, "sk-b", max_tokens=900)).status_code == 200


@pytest.mark.parametrize(
    "extra", ['"max_tokens": 2000.0', '"max_tokens": 2e3', '"max_tokens": "2000"', '"max_tokens": 500, "n": 4.0']
)
async def test_how_a_number_is_written_changes_no_limit(keys_file: Path, engine: MockEngine, extra: str) -> None:
    write(keys_file, content(key(tokens_per_minute=1000)))
    async with serving(engine, keys=keys_file) as router:
        body = f'{{"model": "mock", "messages": [], {extra}}}'
        response = await router.client.post("/v1/chat/completions", content=body, headers=BEARER)
        assert response.status_code == 429


async def test_each_prompt_of_a_request_counts(keys_file: Path, engine: MockEngine) -> None:
    write(keys_file, content(key(tokens_per_minute=1000)))
    async with serving(engine, keys=keys_file) as router:
        for prompts, status in ((["a"], 200), (["a"] * 4, 429)):
            body = {"model": "mock", "prompt": prompts, "max_tokens": 300}
            assert (await router.client.post("/v1/completions", json=body, headers=BEARER)).status_code == status


async def test_a_response_without_usage_counts_as_reserved(
    keys_file: Path, engine: MockEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(keys_file, content(key(tokens_per_minute=1000)))
    monkeypatch.setattr(engine, "compute", lambda request: (None, b""))
    async with serving(engine, keys=keys_file) as router:
        assert [(await post_chat(router, max_tokens=600)).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("kind", ["text/plain", "application/vnd.api+json", "multipart/form-data; boundary=x"])
async def test_what_a_body_is_called_changes_no_limit(keys_file: Path, engine: MockEngine, kind: str) -> None:
    write(keys_file, content(key(tokens_per_minute=1000, models=["mock"])))
    async with serving(engine, keys=keys_file) as router:
        for body, status in ((question() | {"max_tokens": 2000}, 429), (question() | {"model": "other"}, 404)):
            response = await router.client.post(
                "/v1/chat/completions", content=json.dumps(body), headers=BEARER | {"content-type": kind}
            )
            assert response.status_code == status


async def test_a_failed_request_uses_no_tokens(keys_file: Path, engine: MockEngine) -> None:
    write(keys_file, content(key(tokens_per_minute=1000)))
    engine.mode, engine.status = "status", 400
    async with serving(engine, keys=keys_file) as router:
        for _ in range(3):
            assert (await post_chat(router, max_tokens=900)).status_code == 400


async def test_concurrent_requests_end_when_the_client_leaves(keys_file: Path, engine: MockEngine) -> None:
    write(keys_file, content(key(concurrent=1)))
    engine.gate = asyncio.Semaphore(0)
    async with serving(engine, keys=keys_file) as router:
        first = asyncio.create_task(post_chat(router))
        await eventually(lambda: engine.active == 1)
        assert (await post_chat(router)).status_code == 429
        first.cancel()
        await eventually(lambda: engine.active == 0)
        engine.gate.release()
        assert (await post_chat(router)).status_code == 200


async def test_all_clients_share_the_limits_without_keys(engine: MockEngine, tmp_path: Path) -> None:
    config = tmp_path / "router.json"
    config.write_text(json.dumps({"anonymous": {"requests_per_minute": 1}}))
    async with serving(engine, config=config) as router:
        assert (await router.chat()).status_code == 200
        assert (await router.chat()).status_code == 429


# several routers


async def test_ready_routers_of_the_own_service_split_limits(
    tmp_path: Path, keys_file: Path, engine: MockEngine
) -> None:
    def put_replicas(api: FakeApi, *ready: bool) -> None:
        endpoints = [
            {"addresses": [f"10.0.0.{number}"], "conditions": {"ready": each}, "targetRef": {"uid": str(number)}}
            for number, each in enumerate(ready)
        ]
        labels = {"kubernetes.io/service-name": "my-router"}
        api.put(SLICES, "routers", labels=labels, addressType="IPv4", ports=[], endpoints=endpoints)

    async with FakeApi(tmp_path / "serviceaccount") as api:
        put_replicas(api, True, True, False)
        async with serving(engine, keys=keys_file, peers="my-router", cluster=api.cluster) as router:
            quotas = router.router.admission.quotas
            await eventually(lambda: quotas.replicas == 2)
            put_replicas(api, True, True, True)
            await eventually(lambda: quotas.replicas == 3)
            put_replicas(api, False)
            await eventually(lambda: quotas.replicas == 1)


async def test_routers_are_counted_in_a_file_where_there_is_no_api(
    tmp_path: Path, keys_file: Path, engine: MockEngine
) -> None:
    replica_file = tmp_path / "my-router.json"

    def put_replicas(*leaving: bool) -> None:
        endpoints = [{"url": f"http://r{number}:1", "draining": each} for number, each in enumerate(leaving)]
        replica_file.write_text(json.dumps({"endpoints": endpoints}))

    put_replicas(False)
    async with serving(engine, keys=keys_file, peers=replica_file, replicas=5) as router:
        await eventually(lambda: router.router.admission.quotas.replicas == 1)
    put_replicas(False, False, True)
    async with serving(engine, keys=keys_file, peers=replica_file) as router:
        quotas = router.router.admission.quotas
        await eventually(lambda: quotas.replicas == 2)
        put_replicas()
        await eventually(lambda: quotas.replicas == 1)
