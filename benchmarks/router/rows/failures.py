"""One of four engines fails under load: how many clients notice, and how long they wait."""

from __future__ import annotations

import asyncio
import itertools

from benchmarks.figures import QUICK, Figure
from benchmarks.router.engines import Engine, Mode
from benchmarks.router.load import Outcome, crowd, percentile
from benchmarks.router.prompts import grouped
from benchmarks.router.rounds import Context, Goal, Values, figures, one_by_one
from benchmarks.router.routers import Router

CALLERS = 16
DELAY = 0.01
SECONDS = 3.0 if QUICK else 6.0
KILLING = 10.0 if QUICK else 60.0
FIRST_BYTE = 1.0
"""Seconds after which our router gives up an engine that hangs. The peers' own limits are minutes."""
FAILURES: tuple[tuple[str, Mode | None, float | None], ...] = (
    ("down", None, 16.0),
    ("500", "500", 16.0),
    ("503", "503", 16.0),
    ("reset", "reset", 16.0),
    ("hanging", "hang", None),
)
"""Name, mode (None: its port closes), and the target of the 99th percentile in ms."""


async def run(context: Context) -> list[Figure]:
    kinds = context.kinds("--first_byte_timeout", str(FIRST_BYTE))
    made = []
    for name, mode, slowest in FAILURES:

        async def measure(router: Router, engines: list[Engine], mode: Mode | None = mode) -> Values:
            load = asyncio.create_task(crowd(router.port, CALLERS, grouped(2000), seconds=SECONDS))
            await asyncio.sleep(1.0)
            if mode is None:
                engines[1].kill()
            else:
                engines[1].mode = mode
            return _values(router, await load)

        results = await one_by_one(kinds, measure, rounds=1, delay=DELAY)
        made += figures(name, results, {"errors": Goal("errors", "<=", 0.0), "p99": Goal("ms", "<=", slowest)})
    return made


async def run_killed(context: Context) -> list[Figure]:
    """Every 2 s an engine is killed, and restarted after 1 s; unary responses and streams at the same time."""

    async def measure(router: Router, engines: list[Engine]) -> Values:
        killing = asyncio.create_task(_kill(engines))
        load = (
            crowd(router.port, CALLERS, grouped(2000), seconds=KILLING),
            crowd(router.port, CALLERS, grouped(2000, 1), seconds=KILLING, stream=True, tokens=20),
        )
        unary, streamed = await asyncio.gather(*load)
        killing.cancel()
        return {
            **_values(router, unary),
            "streams": float(streamed.done),
            "streams_cut": float(streamed.errors.total()),
        }

    results = await one_by_one(
        context.kinds("--first_byte_timeout", str(FIRST_BYTE), internal=True),
        measure,
        rounds=1,
        delay=DELAY,
        interval=DELAY,
    )
    goals = {
        "errors": Goal("errors", "<=", 0.0),
        "p99": Goal("ms", "<="),
        "streams": Goal("streams", ">="),
        "streams_cut": Goal("streams", "<=", 0.0),
    }
    return figures("killed", results, goals)


async def _kill(engines: list[Engine]) -> None:
    for engine in itertools.cycle(engines):
        await asyncio.sleep(1.0)
        engine.kill()
        await asyncio.sleep(1.0)
        await engine.start()


def _values(router: Router, outcome: Outcome) -> Values:
    if outcome.errors:
        print(f"  {router.kind.name}: {dict(outcome.errors)}")
    return {"errors": float(outcome.errors.total()), "p99": percentile(outcome.times, 0.99) * 1e3}
