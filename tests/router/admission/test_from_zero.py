"""A service without engines: whatever is held meanwhile is answered in the order in which it came, and counts whole."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from router_support.engine import MockEngine
from router_support.serving import Running, eventually, question, serving

from blade_protocol import paths
from blade_protocol.routing import AdapterConfig, EndpointConfig, HoldConfig, QueueConfig, RouterConfig


def configured(folder: Path, **queue: Any) -> Path:
    path = folder / "router.json"
    path.write_text(json.dumps({"hold": {"max_requests": 256, "heartbeat": 0.05}, "queue": queue}))
    return path


async def absent(engine: MockEngine) -> EndpointConfig:
    """The endpoint of an engine that is not there yet."""
    await engine.start()
    await engine.kill()
    return EndpointConfig(url=engine.url, name=engine.name)


async def hold(router: Running, client: httpx.AsyncClient, count: int) -> "list[asyncio.Task[httpx.Response]]":
    """So many requests, every other one a stream, that came one after the other."""
    pending = router.router.request_queues.pending
    held = []
    for number in range(count):
        body, name = question(stream=bool(number % 2)), {"x-number": str(number)}
        held.append(asyncio.create_task(client.post(paths.CHAT_COMPLETIONS, json=body, headers=name)))
        await eventually(lambda number=number: pending.count() == number + 1)  # type: ignore[misc]
    return held


async def test_256_held_requests_are_answered_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    engine = MockEngine("a")
    endpoint = await absent(engine)
    path = configured(tmp_path, endpoint_requests=1)
    limits = httpx.Limits(max_connections=300)
    async with (
        serving(wait=False, endpoints=(endpoint,), config=path) as router,
        httpx.AsyncClient(base_url=router.url, limits=limits, timeout=60, trust_env=False) as client,
    ):
        held = await hold(router, client, 256)
        began = time.monotonic()
        await asyncio.sleep(0.1)
        refused = await client.post(paths.CHAT_COMPLETIONS, json=question())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "hold_full")
        waited = time.monotonic() - began
        async with engine:
            responses = await asyncio.gather(*held)
            assert [each.header("x-number") for each in engine.received] == [[str(number)] for number in range(256)]
        assert {response.status_code for response in responses} == {200}
        for stream in responses[1::2]:
            assert stream.content.startswith(b": waiting\n\n")
            assert stream.content.endswith(b"data: [DONE]\n\n")
            assert b"error" not in stream.content
        (fastest,) = router.router.metrics.ttft.percentiles(0.01)
        assert fastest >= waited, "the time to the first token is that of the whole wait"
        assert not router.router.request_queues.demand.present


async def test_streams_and_others_leave_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    """Also where the engine gets all of them at once: no request is sent before an earlier one."""
    engine = MockEngine("a")
    endpoint = await absent(engine)
    async with serving(wait=False, endpoints=(endpoint,), config=configured(tmp_path, enabled=False)) as router:
        left: list[str] = []
        wait_for_endpoint = router.router.admission._wait_for_endpoint
        assert wait_for_endpoint is not None

        async def waits(request: Any, *rest: Any) -> bool:
            waited = await wait_for_endpoint(request, *rest)
            left.append(dict(request.headers)[b"x-number"].decode())
            return waited

        router.router.admission._wait_for_endpoint = waits
        held = await hold(router, router.client, 20)
        async with engine:
            assert {(await each).status_code for each in held} == {200}
        # One that met the engine before it listened waits once more.
        assert list(dict.fromkeys(left)) == [str(number) for number in range(20)]


async def test_what_was_held_waits_in_the_queue_for_as_long_as_it_may_be_held(tmp_path: Path) -> None:
    permits = asyncio.Semaphore(0)
    engine = MockEngine("a", gate=permits)
    endpoint = await absent(engine)
    async with serving(wait=False, endpoints=(endpoint,)) as router:
        queue = QueueConfig(endpoint_requests=1, max_age=0.05)
        router.router.apply(RouterConfig(endpoints=(endpoint,), queue=queue, hold=HoldConfig(max_requests=9)))
        held = await hold(router, router.client, 3)
        async with engine:
            await eventually(lambda: engine.active == 1)
            late = await router.chat()
            assert (late.status_code, late.json()["error"]["code"]) == (503, "queue_timeout")
            assert router.router.request_queues.queue().state().requests == 2
            for _ in range(20):  # a stream takes one for each event
                permits.release()
            assert [(await each).status_code for each in held] == [200] * 3


async def test_what_was_held_does_not_wait_in_the_queue_for_longer_than_it_may_be_held(tmp_path: Path) -> None:
    engine = MockEngine("a", gate=asyncio.Semaphore(0))
    endpoint = await absent(engine)
    async with serving(wait=False, endpoints=(endpoint,)) as router:
        queue = QueueConfig(endpoint_requests=1, max_age=0.05)
        hold_config = HoldConfig(max_requests=9, max_age=0.3)
        router.router.apply(RouterConfig(endpoints=(endpoint,), queue=queue, hold=hold_config))
        held = await hold(router, router.client, 2)
        async with engine:
            (done,), (other,) = await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
            assert b"queue_timeout" in (await done).content
            other.cancel()


async def test_who_wakes_an_engine_for_an_adapter_waits_until_it_is_loaded(tmp_path: Path) -> None:
    engine = MockEngine("a")
    endpoint = await absent(engine)
    hold_config = HoldConfig(max_requests=9, wakes=True)
    config = RouterConfig(endpoints=(endpoint,), hold=hold_config, adapters=(AdapterConfig(name="sql"),))
    async with serving(wait=False, endpoints=(endpoint,)) as router:
        router.router.apply(config)

        def chat(model: str) -> "asyncio.Future[httpx.Response]":
            return asyncio.ensure_future(router.client.post(paths.CHAT_COMPLETIONS, json=question() | {"model": model}))

        pending, endpoints = router.router.request_queues.pending, router.router.endpoints
        requests = [chat(model) for model in ("sql", "base", "sql")]
        await eventually(lambda: pending.count() == 3)
        async with engine:
            assert (await requests[1]).status_code == 200
            late = chat("sql")
            await eventually(lambda: pending.count() == 3)
            endpoints.all[0].report.adapters = frozenset({"sql"})
            assert {(await each).status_code for each in (*requests, late)} == {200}
            # An engine that has been there for long is not about to load it.
            endpoints.all[0].report.adapters = frozenset()
            waits = chat("sql")
            await eventually(lambda: pending.count() == 1)
            endpoints.adapter_seconds = 0.0
            for response in (await waits, await chat("sql")):
                assert (response.status_code, response.json()["error"]["code"]) == (503, "adapter_not_loaded")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_place_and_ends_its_demand(tmp_path: Path, stream: bool) -> None:
    async with serving(wait=False, config=configured(tmp_path)) as router:
        pending = router.router.request_queues.pending
        request = asyncio.create_task(router.chat(stream=stream))
        await eventually(lambda: pending.count() == 1)
        assert router.router.request_queues.demand.present
        request.cancel()
        await eventually(lambda: pending.count() == 0)
        assert not router.router.request_queues.demand.present


async def test_a_router_whose_requests_start_an_engine_is_healthy_without_one() -> None:
    async with serving(wait=False) as router:
        assert (await router.client.get(paths.HEALTH)).status_code == 503
        router.router.apply(RouterConfig(hold=HoldConfig(max_requests=9, wakes=True)))
        response = await router.client.get(paths.HEALTH)
        assert (response.status_code, response.json()["status"]) == (200, "sleeping")
        router.router.apply(RouterConfig(hold=HoldConfig(max_requests=0, wakes=True)))
        assert (await router.client.get(paths.HEALTH)).status_code == 503, "nothing is held, so nothing starts one"
