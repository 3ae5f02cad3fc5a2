"""Resident memory after a million prompts that share nothing: what routers remember of prompts must be bounded."""

from __future__ import annotations

from benchmarks.figures import QUICK, Figure
from benchmarks.router.engines import Engine
from benchmarks.router.load import crowd, right
from benchmarks.router.prompts import cold
from benchmarks.router.rounds import Context, Goal, Values, figures, one_by_one
from benchmarks.router.routers import Router

PROMPTS = 20_000 if QUICK else 1_000_000
PEER_PROMPTS = PROMPTS // 10
"""The peers' memory after a tenth of the prompts is enough to compare."""
BLOCKS = 8


async def run(context: Context) -> list[Figure]:
    async def measure(router: Router, engines: list[Engine]) -> Values:
        half = (PEER_PROMPTS if router.kind.peer else PROMPTS) // 2
        right(await crowd(router.port, 64, cold(BLOCKS, 1), requests=half))
        middle = router.rss()
        right(await crowd(router.port, 64, cold(BLOCKS, 2), requests=half))
        return {"rss": router.rss(), "growth": router.rss() - middle}

    results = await one_by_one(context.kinds(), measure, rounds=1)
    # flat: the second half adds no more than noise of the allocator
    goals = {"rss": Goal("MiB", "<=", 250.0), "growth": Goal("MiB", "<=", None if QUICK else 10.0)}
    return figures("memory", results, goals)
