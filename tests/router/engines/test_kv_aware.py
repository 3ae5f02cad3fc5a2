"""Under eviction pressure and with two routers, KV events beat each router's approximate index."""

import contextlib
import random
from collections.abc import Iterator

import pytest
from router_support.cached_engine import CachedEngine
from router_support.serving import Running, eventually, serving

from blade_router.engines import KvIndex, kv_index, watchers

GROUPS = 48
PREFIX = 4_096
"""Characters that all prompts of a group begin with."""
REQUESTS = 600
ENGINES = 4


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test waits for events itself, so nothing has to be guessed meanwhile."""
    monkeypatch.setattr(kv_index, "PENDING_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(watchers, "INITIAL_BACKOFF", 0.01)


def prompts(rng: random.Random) -> Iterator[str]:
    """A shared beginning and an own end."""
    beginnings = ["".join(rng.choices("abcdefgh ", k=PREFIX)) for _ in range(GROUPS)]
    while True:
        yield rng.choice(beginnings) + "".join(rng.choices("abcdefgh ", k=300))


def index_of(running: Running) -> KvIndex | None:
    return running.router.engine_watchers.index


def is_up_to_date(running: Running, engines: list[CachedEngine]) -> bool:
    index = index_of(running)
    if index is None:
        return True
    positions = [index.position(endpoint) for endpoint in running.router.endpoints.all]
    return positions == [(each.internal_port.state.epoch, each.internal_port.sequence) for each in engines]


async def hit_rate(*, exact: bool) -> tuple[float, float]:
    """Share of KV blocks that were cached, and the share of requests that the busiest engine got, times engines."""
    rng = random.Random(7)
    async with contextlib.AsyncExitStack() as stack:
        # Three quarters of all beginnings fit into all caches together.
        blocks = GROUPS * PREFIX // 60 * 3 // 4 // ENGINES
        engines = [CachedEngine(f"e{number}", cache_blocks=blocks) for number in range(ENGINES)]
        for engine in engines:
            await stack.enter_async_context(engine)
        configs = tuple(engine.config for engine in engines)
        routers = []
        for _ in range(2):
            running = await stack.enter_async_context(
                serving(endpoints=configs, wait=False, policy="kv-aware" if exact else "auto")
            )
            usable = running.router.endpoints.usable_count
            await eventually(lambda usable=usable: usable() == ENGINES)  # type: ignore[misc]
            assert (index_of(running) is not None) == exact
            running.router.policy_options.rng.seed(len(routers))
            routers.append(running)
        for running in routers:
            await eventually(lambda running=running: is_up_to_date(running, engines))  # type: ignore[misc]
        for number, prompt in zip(range(REQUESTS), prompts(rng), strict=False):
            body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
            response = await rng.choice(routers).client.post("/v1/chat/completions", json=body)
            assert response.status_code == 200
            for running in routers:
                await eventually(lambda running=running: is_up_to_date(running, engines))  # type: ignore[misc]
            if number == REQUESTS // 3:  # the caches are full
                for engine in engines:
                    engine.hits = engine.blocks_seen = 0
        blocks = [engine.blocks_seen for engine in engines]
        return sum(engine.hits for engine in engines) / sum(blocks), max(blocks) * ENGINES / sum(blocks)


async def test_kv_aware_beats_the_approximate_index() -> None:
    approximate, _ = await hit_rate(exact=False)
    exact, imbalance = await hit_rate(exact=True)
    assert exact > approximate + 0.05
    assert imbalance < 2.0, "nobody waits, so counts need not be equal; but no engine gets everything"
