"""Policies in a running router: chosen, weighted and changed by its configuration."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from router_support.engine import MockEngine
from router_support.serving import eventually, serving

from blade_router.arguments import Options, parse_arguments
from blade_router.config.parsing import ConfigError
from blade_router.policies import Canary
from blade_router.router import Router

LONG = {"model": "mock", "messages": [{"role": "user", "content": "long " * 1000}]}


def write(path: Path, *engines: MockEngine, **more: object) -> None:
    """Replace the configuration; revisions are the engines' names."""
    listed = [{"url": engine.url, "name": engine.name, "revision": engine.name} for engine in engines]
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps({"endpoints": listed, **more}))
    os.replace(temporary, path)


async def test_a_canary_comes_and_goes_and_prompts_stay_known(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    async with MockEngine("v1") as old, MockEngine("v2") as new:
        write(path, old, new, policy="auto")
        async with serving(endpoints=(), config=path, wait=False, debug_routes=True) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 2)

            async def reason() -> str:
                response = await router.client.post("/v1/chat/completions", json=LONG)
                return response.headers["x-blade-route-reason"]

            assert (await reason()).startswith("auto prefix=0/19 in_flight=0 ms=")
            assert (await reason()).startswith("auto prefix=19/19 in_flight=0 ms=")
            write(path, old, new, policy="auto", canary={"v1": 3, "v2": 1})
            await eventually(lambda: isinstance(router.router.proxy.policy, Canary))
            shares = Counter([(await reason()).split(" auto")[0] for _ in range(16)])
            assert shares == {"canary rev=v1": 12, "canary rev=v2": 4}
            write(path, old, new, policy="prefix")
            await eventually(lambda: router.router.proxy.policy.name == "prefix")
            assert await reason() == "prefix prefix=19/19 in_flight=0"


async def test_slots_of_a_revision_without_weight_admit_nothing(tmp_path: Path) -> None:
    path, queue = tmp_path / "router.json", {"endpoint_requests": 3}
    async with MockEngine("v1") as old, MockEngine("v2") as new:
        write(path, old, new, queue=queue, canary={"v1": 100, "v2": 0})
        async with serving(endpoints=(), config=path, wait=False) as router:
            endpoints, slots = router.router.endpoints, router.router.request_queues.queue().slots
            await eventually(lambda: endpoints.usable_count() == 2)
            assert (slots.engines, slots.total) == (1, 3)
            write(path, old, new, queue=queue, canary={"v1": 60, "v2": 40})
            await eventually(lambda: (slots.engines, slots.total) == (2, 6))
            write(path, new, queue=queue, canary={"v1": 100, "v2": 0})  # nobody else is left
            await eventually(lambda: (len(endpoints.all), slots.total) == (1, 3))


async def test_a_removed_engine_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    async with MockEngine("a") as a, MockEngine("b") as b:
        write(path, a)
        async with serving(endpoints=(), config=path, wait=False, debug_routes=True) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 1)
            await router.client.post("/v1/chat/completions", json=LONG)
            write(path, b)
            await eventually(lambda: [each.name for each in router.router.endpoints.all] == ["b"])
            write(path, a, b)
            await eventually(lambda: router.router.endpoints.usable_count() == 2)
            response = await router.client.post("/v1/chat/completions", json=LONG)
            assert "prefix=0/19" in response.headers["x-blade-route-reason"]


async def test_a_policy_that_cannot_be_made_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "router.json"
    async with MockEngine("a") as a:
        write(path, a, policy="prefix")
        async with serving(endpoints=(), config=path, wait=False, debug_routes=True) as router:
            await eventually(lambda: router.router.endpoints.usable_count() == 1)
            write(path, a, policy="external")
            await eventually(lambda: "policy external: it needs --cost" in caplog.text)
            assert (await router.chat()).headers["x-blade-route-reason"].startswith("prefix")


def test_external_without_a_function_does_not_start() -> None:
    options = parse_arguments(["--endpoints", "http://127.0.0.1:1", "--policy", "external", "--cost", "nowhere:f"])
    with pytest.raises(ConfigError, match="'nowhere:f' cannot be imported"):
        Router(options)


def test_the_index_has_the_size_of_the_flag() -> None:
    options = parse_arguments(["--endpoints", "http://127.0.0.1:1", "--prefix_index_bytes", "4000"])
    assert options.prefix_index_bytes == 4000
    assert Options().prefix_index_bytes == 64 << 20
