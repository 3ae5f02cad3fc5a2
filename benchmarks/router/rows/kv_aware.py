"""Two routers in front of the same engines, whose prefix caches have no room for two copies of everything.

Each approximate index knows only what its own router sent, so the two keep copies of a prefix in different places and
evict each other's. The exact one gets the engines' KV events.
"""

from __future__ import annotations

import asyncio
import statistics

from benchmarks.figures import QUICK, Figure
from benchmarks.router.engines import fleet
from benchmarks.router.kv_events import KvEventPublisher
from benchmarks.router.load import crowd, right
from benchmarks.router.prompts import grouped
from benchmarks.router.rounds import Context, Values
from benchmarks.router.routers import Skipped, ours, started
from benchmarks.router.rows.prefix import CACHE, DECODE, SIZE, hit_rate

REQUESTS = 1500
"""Requests that the clients of each router send."""


async def run(context: Context) -> list[Figure]:
    rounds = [(await _measure("auto", turn), await _measure("kv-aware", turn)) for turn in range(1 if QUICK else 3)]
    made = []
    for name, unit in (("hit_rate", "share"), ("requests_per_second", "req/s")):
        made.append(Figure(f"kv_aware_{name}", max(exact[name] for _, exact in rounds), unit))
        made.append(Figure(f"kv_aware_{name}_of_auto", max(guessed[name] for guessed, _ in rounds), unit))
        ratio = statistics.median(exact[name] / guessed[name] for guessed, exact in rounds)
        made.append(Figure(f"kv_aware_{name}_by_auto", ratio, "x", ">=", 1.0))
    return made


async def _measure(policy: str, seed: int) -> Values:
    engine = {"cache_blocks": CACHE, "block_seconds": 0.0015, "serial": True, "delay": DECODE}
    async with fleet(**engine) as engines:  # type: ignore[arg-type]
        publishers = [KvEventPublisher(CACHE) for _ in engines]
        for each, publisher in zip(engines, publishers, strict=True):
            each.publisher = publisher
        kind = ours(policy=policy, internal=True)
        async with started(kind, engines) as one, started(kind, engines) as other:
            sample = grouped(SIZE, seed, unique=16)
            load = [crowd(router.port, 24, sample, requests=REQUESTS) for router in (one, other)]
            outcomes = [right(outcome) for outcome in await asyncio.gather(*load)]
            if policy == "kv-aware" and not all(publisher.subscribers for publisher in publishers):
                raise Skipped("the router does not subscribe to the engines' KV events")
            return {
                "hit_rate": hit_rate(engines),
                "requests_per_second": sum(outcome.rate for outcome in outcomes),
            }
