"""A client leaves: how long until the engine learns of it, in a stream and while a unary response is awaited."""

from __future__ import annotations

import asyncio
import time

from benchmarks.figures import QUICK, Figure
from benchmarks.router.engines import Engine
from benchmarks.router.load import open_caller, request
from benchmarks.router.rounds import Context, Goal, Values, figures, side_by_side
from benchmarks.router.routers import Router

TIMES = 10 if QUICK else 50
NEVER = 2_000.0
"""Milliseconds reported when an engine does not learn of it."""


async def run(context: Context) -> list[Figure]:
    async def measure(router: Router, engines: list[Engine]) -> Values:
        return {
            "stream": max([await _leave(router, engines, stream=True) for _ in range(TIMES)]),
            "unary": max([await _leave(router, engines, stream=False) for _ in range(TIMES)]),
        }

    results = await side_by_side(context.kinds(), measure, rounds=1, delay=60.0, interval=0.05)
    goals = {"stream": Goal("ms", "<=", 50.0), "unary": Goal("ms", "<=", 50.0)}
    return figures("cancel", results, goals)


async def _leave(router: Router, engines: list[Engine], *, stream: bool) -> float:
    """Milliseconds from closing a client's connection to the engine's own breaking."""
    for engine in engines:
        engine.aborted.clear()
    caller = await open_caller(router.port)
    data, question = request("leave", stream=stream, tokens=1000)
    pending = asyncio.create_task(caller.request(data, question))
    while not any(engine.active for engine in engines) or (stream and not caller.parts):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    left = time.perf_counter()
    caller.transport.abort()
    await asyncio.gather(pending, return_exceptions=True)
    while not (aborted := [moment for engine in engines for moment in engine.aborted]):
        if time.perf_counter() - left > NEVER / 1e3:
            for engine in engines:
                for connection in list(engine.connections):
                    connection.cut()
            return NEVER
        await asyncio.sleep(0.001)
    return (aborted[0] - left) * 1e3
