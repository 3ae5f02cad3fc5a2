"""How well prompts that share a prefix are kept together, and how evenly engines are loaded all the same.

64 groups of prompts share 16 blocks each; an engine's cache holds 400, so it can have 25 groups at the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks.figures import Figure
from benchmarks.router.engines import BLOCK, Engine
from benchmarks.router.load import Outcome, crowd, percentile, right
from benchmarks.router.prompts import GROUPS, grouped
from benchmarks.router.rounds import Context, Goal, Values, figures, one_by_one
from benchmarks.router.routers import Router

SIZE = 16 * BLOCK
CACHE = 400
DECODE = 0.02


def imbalance(engines: list[Engine]) -> float:
    """The busiest engine's requests, divided by the mean."""
    counts = [engine.requests for engine in engines]
    return max(counts) * len(counts) / sum(counts)


def hit_rate(engines: list[Engine]) -> float:
    return sum(engine.hits for engine in engines) / sum(engine.blocks for engine in engines)


async def sequential(router: Router, engines: list[Engine], seed: int = 0) -> Outcome:
    """256 requests, one after another."""
    return right(await crowd(router.port, 1, grouped(SIZE, seed, unique=16), requests=256))


async def run(context: Context) -> list[Figure]:
    kinds = context.kinds(round_robin=True)

    async def seq(router: Router, engines: list[Engine]) -> Values:
        await sequential(router, engines)
        return {"imbalance": imbalance(engines)}

    async def pfx(router: Router, engines: list[Engine]) -> Values:
        right(await crowd(router.port, 32, grouped(SIZE, unique=16), requests=2000))
        spread = sum(len(engine.groups) for engine in engines) / GROUPS
        return {"hit_rate": hit_rate(engines), "imbalance": imbalance(engines), "engines_per_group": spread}

    async def warm(router: Router, engines: list[Engine]) -> Values:
        await sequential(router, engines)
        for engine in engines:
            engine.requests = engine.hits = engine.blocks = 0
            engine.groups.clear()
        return await pfx(router, engines)

    hits = {
        "hit_rate": Goal("share", ">=", 0.96),
        "imbalance": Goal("x", "<=", 1.10),
        "engines_per_group": Goal("engines", "<="),
    }
    slow = {"cache_blocks": CACHE, "block_seconds": 0.001, "delay": DECODE}
    made = figures(
        "seq",
        await one_by_one(kinds, seq, cache_blocks=CACHE),
        {"imbalance": Goal("x", "<=", 1.15)},
    )
    made += figures("pfx", await one_by_one(kinds, pfx, **slow), hits)
    return made + figures("pfx_warm", await one_by_one(kinds, warm, **slow), hits)


async def run_queues(context: Context) -> list[Figure]:
    """Engines that prefill one prompt at a time: affinity and balance both count."""
    kinds = context.kinds(round_robin=True)
    queues = {"cache_blocks": CACHE, "block_seconds": 0.0015, "serial": True, "delay": DECODE}
    rate, p99 = (1750.0, 1820.0), (200.0, 120.0)
    made = []
    for place, (row, zipf) in enumerate((("pfq", 0.0), ("pfqz", 1.1))):
        results = await one_by_one(kinds, _queue(zipf), **queues)
        goals = {
            "requests_per_second": Goal("req/s", ">=", rate[place]),
            "p50": Goal("ms", "<="),
            "p99": Goal("ms", "<=", p99[place]),
            "imbalance": Goal("x", "<=", 1.4 if zipf else None),
        }
        made += figures(row, results, goals)
    return made


def _queue(zipf: float) -> Callable[[Router, list[Engine]], Awaitable[Values]]:
    async def measure(router: Router, engines: list[Engine]) -> Values:
        outcome = right(await crowd(router.port, 48, grouped(SIZE, zipf=zipf, unique=16), requests=3000))
        return {
            "requests_per_second": outcome.rate,
            "p50": percentile(outcome.times, 0.5) * 1e3,
            "p99": percentile(outcome.times, 0.99) * 1e3,
            "imbalance": imbalance(engines),
        }

    return measure
