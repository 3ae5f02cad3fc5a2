"""Crowds that mean harm, or know no better: others are served meanwhile, and the router holds no more than it may."""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from router_support.engine import MockEngine
from router_support.program import running
from router_support.raw import BODY, RawClient, connected, get, post
from router_support.serving import Running, eventually, serving
from security.floods import BUDGET, CONNECTIONS, FLOODS, LABELS, LIMITS, Flood

from blade_router.http.accept.connection_table import RESERVE

OTHER = ("127.0.0.2", 0)
"""The address of the client that must be served."""


@contextlib.asynccontextmanager
async def flooding(port: int, flood: Flood) -> AsyncIterator[list[RawClient]]:
    """All clients of a flood, none of which reads anything."""
    clients: list[RawClient] = []
    try:
        for number in range(flood.clients):
            clients.append(await RawClient.connect(port, limit=1000))
            clients[-1].send(flood.of(number))
        yield clients
    finally:
        for client in clients:
            client.writer.transport.abort()


async def status_of(port: int, request: bytes) -> int:
    async with connected(port, local_addr=OTHER) as client:
        client.send(request)
        return (await client.response()).status


@pytest.mark.parametrize("name", FLOODS)
async def test_others_are_served_and_what_is_held_is_bounded(name: str) -> None:
    flood = FLOODS[name]
    gate = asyncio.Semaphore(0) if flood.hangs else None
    async with MockEngine("a", gate=gate) as engine, serving(engine, **LIMITS) as router:
        budget, table = router.server.limits.budget, router.server.table
        async with flooding(router.port, flood):
            for _ in range(3):
                assert await status_of(router.port, get(b"/live")) == 200
                if not flood.hangs:
                    assert await status_of(router.port, post(BODY[:-1] + b" " * 50_000 + b"}")) == 200
                assert len(table) <= CONNECTIONS
                assert len(router.server.connections) <= CONNECTIONS + RESERVE
                assert budget.used <= BUDGET
        await eventually(lambda: not engine.active, "engines work for nobody")
        await eventually(lambda: budget.used == 0)
        assert max((await labels(router)).values()) <= LABELS


async def labels(router: Running) -> Counter[str]:
    """How many samples each metric has, a histogram's buckets apart."""
    text = (await router.admin.get("/metrics")).text
    return Counter(
        re.sub(r"le=\"[^\"]*\",?", "", line).split("{")[0] for line in text.splitlines() if "_bucket" not in line
    )


@pytest.mark.parametrize("name", ["silent connections", "half heads", "announced uploads"])
async def test_with_few_open_files_others_are_served_too(name: str) -> None:
    """As a program: in this process the crowd's own sockets would count."""
    async with MockEngine("a") as engine, running("--endpoints", engine.url) as (port, _, _):
        async with flooding(port, FLOODS[name]):
            for _ in range(3):
                assert await status_of(port, get(b"/live")) == 200
            await until_served(port)
            assert engine.active == 0


async def until_served(port: int) -> None:
    """A request is served, once the first health check has found the engine."""
    async with asyncio.timeout(10):
        while await status_of(port, post()) != 200:  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(0.05)
