"""Clients that take their time cost nobody else any, and the router gets everything back that they held."""

import asyncio
import itertools

import pytest
from router_support.engine import MockEngine
from router_support.raw import RawClient, connected, get, post
from router_support.serving import eventually, serving
from security.slow_clients import DEAF, DROP, KEEP_ALIVE, LIMITS, SLOW

from blade_router import app
from blade_router.http import connection


async def drip(client: RawClient, drops: tuple[bytes, ...]) -> None:
    for drop in itertools.cycle(drops):
        client.send(drop)
        await asyncio.sleep(DROP)


@pytest.mark.parametrize("name", SLOW)
async def test_a_slow_client_is_cut_off_in_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "CLIENT_KEEP_ALIVE", KEEP_ALIVE)
    slow = SLOW[name]
    async with MockEngine("a") as engine, serving(engine, **LIMITS) as router, connected(router.port) as client:
        client.send(slow.sent)
        dripping = asyncio.create_task(drip(client, slow.drops))
        try:
            assert tuple([(await client.response()).status for _ in slow.statuses]) == slow.statuses
            assert await client.closed() == b""
        finally:
            dripping.cancel()
        assert router.server.limits.budget.used == 0
        assert len(engine.received) == slow.statuses.count(200) - (b"/live" in slow.sent), "nothing incomplete"
        async with connected(router.port) as other:
            other.send(post())
            assert (await other.response()).status == 200


@pytest.mark.parametrize("name", DEAF)
async def test_a_client_that_reads_nothing_is_dropped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL_TIMEOUT", 0.1)
    async with MockEngine("a", tokens=400, padding="x" * 50_000) as engine:
        if "large" in name or "more requests" in name:
            engine.padding *= 200
        async with serving(engine, **LIMITS) as router, connected(router.port, limit=1000) as deaf:
            deaf.send(DEAF[name])
            await eventually(lambda: engine.received)
            async with connected(router.port) as other:
                other.send(get(b"/live"))
                assert (await other.response()).status == 200
            await eventually(lambda: not any(each.busy for each in router.server.connections))
            await eventually(lambda: not engine.active)
            await eventually(lambda: router.server.limits.budget.used == 0)
            assert len(engine.received) < 100
