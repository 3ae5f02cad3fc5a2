"""The measured cases of ``docs/routing-policies.md`` through processes, beside sglang-router's ``cache_aware``.

Four engines cache 400 blocks each and compute one prompt at a time, 1.5 ms a block, 20 ms else; 64 groups of prompts
share 16 blocks. ``cached_tokens`` is exact, or absent, or ``prompt_tokens`` are another tokenizer's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from benchmarks.figures import QUICK, Figure
from benchmarks.router.engines import BLOCK, Engine
from benchmarks.router.load import crowd, percentile, right
from benchmarks.router.prompts import GROUPS, filler, grouped
from benchmarks.router.rounds import Context, Goal, Values, figures, one_by_one
from benchmarks.router.routers import Router
from benchmarks.router.rows.prefix import CACHE, DECODE, SIZE, hit_rate, sequential

PEER = "sglang"
REPORTED = {"exact": {}, "foreign": {"token_size": 2}, "absent": {"says_cached": False}}
TURNS = 8
FIRST_BLOCKS = 4
TURN_BLOCKS = 2


def conversations() -> Callable[[], str]:
    """`GROUPS` conversations of `TURNS` growing prompts, all of them turn by turn."""
    texts = [filler(5000 + at, FIRST_BLOCKS * BLOCK) for at in range(GROUPS)]
    turns = itertools.count()

    def sample() -> str:
        turn, at = divmod(next(turns), GROUPS)
        if turn:
            texts[at] += filler(10_000 * turn + at, TURN_BLOCKS * BLOCK)
        return texts[at]

    return sample


async def run(context: Context) -> list[Figure]:
    kinds = context.kinds()
    engine = {"cache_blocks": CACHE, "block_seconds": 0.0015, "serial": True, "delay": DECODE}
    goals = {
        "requests_per_second": Goal("req/s", ">=", ratio=(PEER, 1.02)),
        "p50": Goal("ms", "<="),
        "p99": Goal("ms", "<=", ratio=(PEER, 1.0)),
        "hit_rate": Goal("share", ">=", 0.975),
    }
    made = []
    for name, reported in REPORTED.items():
        made += figures(f"affinity_{name}", await one_by_one(kinds, _at_once, **engine, **reported), goals)
    rounds = 1 if QUICK else 2
    alone = {"hit_rate": Goal("share", ">=", 0.74)}
    made += figures("affinity_one_at_a_time", await one_by_one(kinds, _alone, rounds, **engine), alone)
    turns = {"hit_rate": Goal("share", ">=", ratio=(PEER, 0.99))}
    return made + figures("affinity_turns", await one_by_one(kinds, _turns, rounds, **engine), turns)


async def _at_once(router: Router, engines: list[Engine]) -> Values:
    outcome = right(await crowd(router.port, 48, grouped(SIZE, unique=16), requests=3000))
    return {
        "requests_per_second": outcome.rate,
        "p50": percentile(outcome.times, 0.5) * 1e3,
        "p99": percentile(outcome.times, 0.99) * 1e3,
        "hit_rate": hit_rate(engines),
    }


async def _alone(router: Router, engines: list[Engine]) -> Values:
    await sequential(router, engines)
    return {"hit_rate": hit_rate(engines)}


async def _turns(router: Router, engines: list[Engine]) -> Values:
    right(await crowd(router.port, 48, conversations(), requests=GROUPS * TURNS))
    return {"hit_rate": hit_rate(engines)}
