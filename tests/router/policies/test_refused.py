"""A request that an engine does not serve teaches the router nothing about that engine's cache."""

import time
from collections import Counter

import pytest
from router_support.cached_engine import CachedEngine
from router_support.engine import MockEngine
from router_support.policies import end, endpoints, policy, send
from router_support.serving import Running, eventually, serving
from router_support.simulation import chat_request, group_text

from blade_protocol.routing import PolicyName
from blade_router.policies.prefix_cache.prefix_index import BYTES_PER_ENTRY

LEARNING: list[PolicyName] = ["auto", "prefix", "kv-aware", "lora-affinity", "session"]


async def send_prompt(router: Running, group: int, blocks: int) -> int:
    messages = [{"role": "user", "content": group_text(group, blocks)}]
    return (await router.client.post("/v1/chat/completions", json={"model": "mock", "messages": messages})).status_code


@pytest.mark.parametrize("policy", LEARNING)
async def test_an_error_teaches_nothing_and_evicts_nothing(policy: PolicyName) -> None:
    async with MockEngine("a") as a, MockEngine("b") as b:
        async with serving(a, b, policy=policy, prefix_index_bytes=100 * BYTES_PER_ENTRY) as router:
            for group in range(9):
                assert await send_prompt(router, group, 10) == 200
            index = router.router.prefixes
            known = dict(index._locations)
            a.mode = b.mode = "status"
            for status in (307, 400, 401, 404, 413, 422, 429, 500, 501, 503):
                a.status = b.status = status
                for group in range(100, 103):
                    assert await send_prompt(router, group, 40) >= 400
                assert dict(index._locations) == known, status
            assert len(index) == len(known) >= 90


async def test_an_error_teaches_the_exact_index_nothing() -> None:
    async with CachedEngine("a", mode="status", status=400) as engine:
        async with serving(engine, endpoints=(engine.config,), policy="kv-aware") as router:
            index = router.router._kv_index
            await eventually(lambda: index._caches, "its events are followed")
            assert await send_prompt(router, 1, 8) == 400
            assert not index._hashes
            assert not any(cache.pending for cache in index._caches.values())
            engine.mode = "ok"
            assert await send_prompt(router, 1, 8) == 200
            assert index._hashes


async def test_refused_prompts_say_nothing_of_an_engine() -> None:
    chooser, two = policy("auto"), endpoints(2)
    for group in range(40):
        end(send(chooser.choose(two, chat_request(group_text(group, 900)))))
    for endpoint in two:
        assert (endpoint.prefill.samples, endpoint.prefill.wait(time.monotonic(), 1)) == (0, 0.0)


async def test_an_engine_that_refuses_everything_does_not_get_everything() -> None:
    chooser, two = policy("auto"), endpoints(2)
    got: Counter[str] = Counter()
    for group in range(40):
        choice = send(chooser.choose(two, chat_request(group_text(group, 3))))
        got[choice.endpoint.name] += 1
        if choice.endpoint is two[1]:
            choice.first_byte()
        end(choice)
    assert got["0"] <= 2 * got["1"]
