"""Requests about a response reach the engine that keeps it, whatever the policy, and no other one."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from router_support import keys
from router_support.engine import MockEngine
from router_support.serving import Running, serving

from blade_protocol.routing import EndpointConfig

SECRET = "0123456789abcdef" * 2


async def _tag(router: Running, engine: MockEngine) -> str:
    """What the engine is told to begin its ids with."""
    before = len(engine.received)
    while len(engine.received) == before:
        assert (await router.client.post("/v1/responses", json={"input": "x"})).status_code == 200
    (tag,) = engine.received[-1].header("x-blade-response-tag")
    return tag


def _targets(engine: MockEngine) -> list[str]:
    return [request.target for request in engine.received]


@pytest.mark.parametrize("policy", ["round-robin", "auto", "least-request"])
async def test_they_go_to_the_one_that_keeps_it(policy: str) -> None:
    async with MockEngine("a") as first, MockEngine("b") as second, serving(first, second, policy=policy) as router:
        tags = [await _tag(router, engine) for engine in (first, second)]
        assert tags[0] != tags[1]
        assert all(len(tag) == 8 for tag in tags)
        for engine, other, tag in ((first, second, tags[0]), (second, first, tags[1])):
            response = f"resp_{tag}_{SECRET}"
            engine.received.clear()
            other.received.clear()
            for _ in range(3):
                await router.client.get(f"/v1/responses/{response}")
                await router.client.delete(f"/v1/responses/{response}")
                await router.client.get(f"/v1/responses/{response}/input_items?limit=2")
                await router.client.post(f"/v1/responses/{response}/cancel")
                await router.client.post("/v1/responses", json={"input": "x", "previous_response_id": response})
            assert (len(engine.received), other.received) == (15, [])


async def test_counting_goes_where_the_conversation_is() -> None:
    """The path looks like a response's, and is none; without a conversation before it, any engine counts."""
    path = "/v1/responses/input_tokens"
    async with (
        MockEngine("a") as first,
        MockEngine("b") as second,
        serving(first, second, policy="round-robin") as router,
    ):
        tag = await _tag(router, second)
        first.received.clear()
        second.received.clear()
        for _ in range(4):
            previous = f"resp_{tag}_{SECRET}"
            response = await router.client.post(path, json={"input": "x", "previous_response_id": previous})
            assert response.status_code == 200
        assert (first.received, _targets(second)) == ([], [path] * 4)
        for _ in range(2):
            await router.client.post(path, json={"input": "x"})
        assert _targets(first) == [path]
        gone = await router.client.post(path, json={"input": "x", "previous_response_id": f"resp_{'0' * 8}_{SECRET}"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (400, "previous_response_not_found")


async def test_another_router_finds_it() -> None:
    """Nothing is remembered: the tag follows from the endpoint's name."""
    async with MockEngine("a") as first, MockEngine("b") as second:
        async with serving(first, second) as router:
            tag = await _tag(router, second)
        async with serving(second, first) as router:
            first.received.clear()
            await router.client.get(f"/v1/responses/resp_{tag}_{SECRET}")
    assert _targets(second)[-1] == f"/v1/responses/resp_{tag}_{SECRET}"
    assert first.received == []


async def test_an_engine_that_is_gone() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        response = f"resp_01234567_{SECRET}"
        found = await router.client.get(f"/v1/responses/{response}")
        assert (found.status_code, found.json()["error"]["code"]) == (404, "response_not_found")
        body = {"input": "x", "previous_response_id": response}
        found = await router.client.post("/v1/responses", json=body)
    assert (found.status_code, found.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert "Send the whole conversation" in found.json()["error"]["message"]
    assert engine.received == []


async def test_an_engine_that_is_not_ready_is_not_replaced() -> None:
    async with MockEngine("a") as first, MockEngine("b") as second, serving(first, second) as router:
        tag = await _tag(router, first)
        await first.kill()
        second.received.clear()
        body = {"input": "x", "previous_response_id": f"resp_{tag}_{SECRET}"}
        found = await router.client.post("/v1/responses", json=body)
        assert found.status_code == 503
        assert "send the whole conversation" in found.json()["error"]["message"]
        assert second.received == []


@pytest.mark.parametrize("status", [500, 503])
async def test_what_that_engine_answers_is_final(status: int) -> None:
    """No other one could do better: nothing is taken from the budget for retries, and no one waits."""
    async with MockEngine("a") as first, MockEngine("b") as second, serving(first, second) as router:
        tag = await _tag(router, first)
        first.mode, first.status = "status", status
        second.received.clear()
        for _ in range(2):
            body = {"input": "x", "previous_response_id": f"resp_{tag}_{SECRET}"}
            found = await router.client.post("/v1/responses", json=body)
            assert (found.status_code, found.json()["error"]["message"]) == (status, f"a says {status}")
        assert second.received == []


@pytest.mark.parametrize("name", ["resp_1", f"resp_{SECRET}", "resp_0123456_" + SECRET])
async def test_an_id_without_a_mark_goes_anywhere(name: str) -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        await router.client.get(f"/v1/responses/{name}")
        await router.client.post("/v1/responses", json={"input": "x", "previous_response_id": name})
    assert len(engine.received) == 2


async def test_a_large_body_has_its_id_read_too() -> None:
    async with MockEngine("a") as first, MockEngine("b") as second, serving(first, second) as router:
        tag = await _tag(router, second)
        first.received.clear()
        for _ in range(3):
            body = {"input": "x" * 3_000_000, "previous_response_id": f"resp_{tag}_{SECRET}"}
            await router.client.post("/v1/responses", json=body)
    assert first.received == []


async def test_engines_hear_which_key_it_is(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(keys.content(keys.key("a", "secret-of-a"), keys.key("b", "secret-of-b")))
    forged = {"x-blade-caller": "0" * 32, "x-blade-response-tag": "0" * 8}

    async def heard(router: Running, secret: str) -> str:
        headers = {"authorization": f"Bearer {secret}", **forged}
        await router.client.post("/v1/responses", json={"input": "x"}, headers=headers)
        (caller,) = engine.received[-1].header("x-blade-caller")
        assert engine.received[-1].header("x-blade-response-tag") != ["0" * 8]
        return caller

    async with MockEngine("a") as engine, serving(engine, keys=file) as router:
        first, second = await heard(router, "secret-of-a"), await heard(router, "secret-of-b")
        assert first != second
        assert await heard(router, "secret-of-a") == first
    async with MockEngine("a") as engine, serving(engine) as router:
        await router.client.post("/v1/responses", json={"input": "x"}, headers=forged)
        assert engine.received[-1].header("x-blade-caller") == []


async def test_only_what_is_about_responses_has_the_headers() -> None:
    async with MockEngine("a") as engine, serving(engine) as router:
        await router.chat()
    assert engine.received[-1].header("x-blade-response-tag") == []


async def test_the_service_of_a_response_is_found_without_a_model() -> None:
    async with MockEngine("a") as first, MockEngine("b") as second:
        endpoints = tuple(
            EndpointConfig(url=engine.url, name=engine.name, service=f"s-{engine.name}") for engine in (first, second)
        )
        async with serving(endpoints=endpoints, wait=False) as router:
            for engine in (first, second):
                (endpoint,) = (each for each in router.router.endpoints.all if each.name == engine.name)
                found: httpx.Response = await router.client.get(f"/v1/responses/resp_{endpoint.response_tag}_{SECRET}")
                assert found.status_code == 200
                assert len(engine.received) == 1


async def test_the_header_about_ignored_fields_passes() -> None:
    class Ignoring(MockEngine):
        def compute(self, request: Any) -> tuple[dict[str, Any], bytes]:
            usage, lines = super().compute(request)
            return usage, lines + b"x-blade-ignored: tools[0].web_search\r\nx-blade-other: 1\r\n"

    async with Ignoring("a") as engine, serving(engine) as router:
        found = await router.chat()
    assert found.headers["x-blade-ignored"] == "tools[0].web_search"
    assert "x-blade-other" not in found.headers


@pytest.mark.parametrize("kind", [{"type": "item_reference"}, {}], ids=["named", "left out"])
async def test_items_are_referred_to_where_they_are_kept(kind: dict[str, str]) -> None:
    """The id of an output item is made of its response's."""
    async with MockEngine("a") as first, MockEngine("b") as second, serving(first, second) as router:
        tag = await _tag(router, first)
        named = {**kind, "id": f"rs_{tag}_{SECRET}_0"}
        elsewhere = {**kind, "id": f"msg_01234567_{SECRET}_1"}
        given: list[Any] = [{"role": "user", "content": "x"}, named, {"role": "user", "content": "y"}]
        first.received.clear()
        second.received.clear()
        for _ in range(3):
            sent = await router.client.post("/v1/responses", json={"input": given})
            assert sent.status_code == 200
            sent = await router.client.post("/v1/responses", json={"input": [elsewhere, *given]})  # the last one counts
            assert sent.status_code == 200
        assert (len(first.received), second.received) == (6, [])
        found = await router.client.post("/v1/responses", json={"input": [elsewhere]})
        assert (found.status_code, found.json()["error"]["code"]) == (400, "previous_response_not_found")
        text = json.dumps({"input": [elsewhere]})
        for items in (text, [{"role": "user", "content": text}], [{**elsewhere, "type": "message"}], [7, elsewhere]):
            assert (await router.client.post("/v1/responses", json={"input": items})).status_code == 200
