"""Requests per second and CPU time per request: short prompts of 64 groups, and prompts of 64,000 characters."""

from __future__ import annotations

from benchmarks.figures import QUICK, Figure
from benchmarks.router.engines import Engine
from benchmarks.router.load import crowd, right
from benchmarks.router.prompts import grouped
from benchmarks.router.rounds import Context, Goal, Results, Values, figures, side_by_side
from benchmarks.router.routers import Router

SECONDS = 1.5 if QUICK else 5.0


async def run(context: Context) -> list[Figure]:
    goals = {
        "cpu_per_request": Goal("us", "<=", 60.0, ratio=("sglang", 0.6)),
        "requests_per_second": Goal("req/s", ">=", 14_000.0, ratio=("sglang", 1.6)),
        "rss": Goal("MiB", "<="),
    }
    return figures("throughput", await _load(context, 2_000, 64, round_robin=True), goals)


async def run_long(context: Context) -> list[Figure]:
    goals = {
        "cpu_per_request": Goal("us", "<=", 150.0, ratio=("sglang", 0.6)),
        "requests_per_second": Goal("req/s", ">="),
    }
    return figures("long_prompts", await _load(context, 64_000, 32), goals)


async def _load(context: Context, size: int, callers: int, *, round_robin: bool = False) -> Results:
    async def measure(router: Router, engines: list[Engine]) -> Values:
        before = router.cpu()
        outcome = right(await crowd(router.port, callers, grouped(size), seconds=SECONDS))
        cpu = (router.cpu() - before) / outcome.done * 1e6
        return {"cpu_per_request": cpu, "requests_per_second": outcome.rate, "rss": router.rss()}

    return await side_by_side(context.kinds(round_robin=round_robin, both_forms=True), measure)
