"""Slots of engines in whole routers: keys, workers and replicas that share what engines report to run."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from router_support.engine import MockEngine
from router_support.internal_port import InternalPort
from router_support.keys import content, key, post_chat, write
from router_support.serving import Running, eventually, serving

from blade_protocol.routing import EndpointConfig
from blade_router.admin.lending import ReplicaLending
from blade_router.admission.request_queue import REFRESH_SECONDS

TOKENS = 12
"""Of each stream: none ends while an engine is being filled."""
HEAVY, LIGHT = "sk-heavy", "sk-light"


@contextlib.asynccontextmanager
async def behind(
    slots: int, tmp_path: Path, *, replicas: int = 1
) -> AsyncIterator[tuple[MockEngine, asyncio.Semaphore, list[Running]]]:
    """An engine with so many slots, whose responses wait for permits, behind routers with two keys."""
    keys, peers, permits = tmp_path / "keys.json", tmp_path / "my-router.json", asyncio.Semaphore(0)
    write(keys, content(key("heavy", HEAVY), key("light", LIGHT)))
    write(peers, "{}")
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(MockEngine("a", gate=permits, tokens=TOKENS))
        port = await stack.enter_async_context(InternalPort(max_running=slots))
        endpoints = (EndpointConfig(url=engine.url, internal_url=port.url),)
        routers = [
            await stack.enter_async_context(serving(endpoints=endpoints, wait=False, keys=keys, peers=peers))
            for _ in range(replicas)
        ]
        write(
            peers,
            json.dumps({"endpoints": [{"url": router.url, "internal_url": router.admin_url} for router in routers]}),
        )
        for router in routers:
            await eventually(lambda router=router: router.router.endpoints.usable_count() == 1)  # type: ignore[misc]
            await eventually(lambda router=router: _capacity(router) == slots)  # type: ignore[misc]
            lending = router.router._lending
            assert isinstance(lending, ReplicaLending)
            if replicas > 1:
                await eventually(lambda lending=lending: lending.exchange.rank is not None)  # type: ignore[misc]
        await asyncio.sleep(2 * REFRESH_SECONDS)  # then queues look at the reports with the next request
        yield engine, permits, routers


def _capacity(router: Running) -> int:
    return router.router.endpoints.all[0].report.capacity


def sends(router: Running, secret: str, count: int, **body: Any) -> list["asyncio.Task[int]"]:
    async def send() -> int:
        return (await post_chat(router, secret, **body)).status_code

    return [asyncio.create_task(send()) for _ in range(count)]


async def grows(permits: asyncio.Semaphore, engine: MockEngine, active: int) -> None:
    """Let the engine respond, a token at a time, until it has so many requests."""
    for _ in range(100):
        if engine.active == active:
            break
        permits.release()
        await asyncio.sleep(0.01)
    assert engine.active == active


async def end(permits: asyncio.Semaphore, pending: list["asyncio.Task[int]"]) -> None:
    """Everybody gets a response: none was lost."""
    for _ in range((TOKENS + 1) * len(pending)):
        permits.release()
    assert {await each for each in pending} == {200}


async def test_a_key_with_many_streams_leaves_another_one_a_slot(tmp_path: Path) -> None:
    """Nothing about the queue is configured."""
    async with behind(8, tmp_path) as (engine, permits, (router,)):
        pending = sends(router, HEAVY, 60, stream=True)
        await grows(permits, engine, 7)
        await eventually(lambda: router.router.request_queues.queue().state().requests == 53)
        pending += sends(router, LIGHT, 1)
        await eventually(lambda: engine.active == 8)
        assert router.router.request_queues.queue().state().requests == 53
        await end(permits, pending)


async def test_replicas_lend_each_other_slots_and_keep_some_for_who_comes(tmp_path: Path) -> None:
    async with behind(16, tmp_path, replicas=2) as (engine, permits, (one, other)):
        pending = sends(one, HEAVY, 60, stream=True)
        # Its own 8 and the 7 that the other one may lend, of which a key may have seven eighths.
        await grows(permits, engine, 13)
        pending += sends(other, LIGHT, 1)
        await eventually(lambda: engine.active == 14)
        pending += sends(other, LIGHT, 40)
        slots = [router.router.request_queues.queue().slots for router in (one, other)]
        while slots[1].share < 7 and not all(each.done() for each in pending):
            for _ in range(2):  # as requests end, the other one gets its share back
                permits.release()
            await asyncio.sleep(0.03)  # slowly: replicas tell each other meanwhile
        assert slots[1].share >= 7
        assert sum(each.share for each in slots) <= 16
        await end(permits, pending)
        assert [each.running for each in slots] == [0, 0]
