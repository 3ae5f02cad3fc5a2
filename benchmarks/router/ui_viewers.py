"""What open pages of the web UI cost the router: CPU time with many viewers, and what requests cost with the web UI on.

Engines, load and viewers live in this process. The share is the difference of the router's CPU time with viewers and
without, at the same load, in turns.

What a request costs is measured with no page open and with all the load that callers make, on one router whose web UI
is switched off and on: two processes of the same router differ by a few per cent. Turns are in random order. How much
two turns without a web UI differ is printed, too.

    python -m benchmarks.router.ui_viewers    VIEWERS=100 ENGINES=64 RATE=50 SECONDS=10 ROUNDS=3 · TURNS=100
                                              TURN_SECONDS=0.5 · INTERPRETED=1
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import uvloop

from benchmarks.figures import Figure, report
from benchmarks.router.engines import Engine, fleet
from benchmarks.router.load import Caller, callers, crowd, request, right
from benchmarks.router.routers import Kind, Router, interpreted, ours, started
from benchmarks.router.switched import Costs, in_turns
from blade_router.compiled.sources import find

VIEWERS = int(os.environ.get("VIEWERS", "100"))
ENGINES = int(os.environ.get("ENGINES", "64"))
RATE = float(os.environ.get("RATE", "50"))
SECONDS = float(os.environ.get("SECONDS", "10"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
INTERPRETED = bool(os.environ.get("INTERPRETED"))
TURNS = int(os.environ.get("TURNS", "100"))
"""In which the cost of a request is measured with the web UI; there are twice as many without."""
TURN_SECONDS = float(os.environ.get("TURN_SECONDS", "0.5"))
WARM_SECONDS = 0.2
"""Of load before each turn: as many requests as are recorded at once after a pause end in it."""
FEW_ENGINES = 4
"""Where the cost of a request is measured: it takes the less to choose one, and the rest is the greater part."""
TARGET = 2.0
"""Percent of a core."""


async def _read(port: int, counts: list[int]) -> None:
    """One viewer: reads what comes, and counts updates."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ui/stream HTTP/1.1\r\nhost: router\r\n\r\n")
    try:
        while data := await reader.read(1 << 20):
            counts[0] += data.count(b"event: update")
            counts[1] += len(data)
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def viewers(port: int, count: int) -> AsyncIterator[list[int]]:
    """So many open pages; the number of updates and bytes that they have got so far."""
    counts = [0, 0]
    tasks = [asyncio.create_task(_read(port, counts)) for _ in range(count)]
    try:
        await asyncio.sleep(2.5 if count else 0.5)  # the snapshots are not what is measured
        yield counts
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(1.5)  # the router has noticed


async def _load(found: list[Caller], seconds: float) -> int:
    """Send streams at the rate; returns how many."""
    sent, end = 0, time.perf_counter() + seconds
    free = deque(found)

    async def send(number: int) -> None:
        caller = free.popleft()
        await caller.request(*request(f"conversation {number % 97} ", stream=True))
        free.append(caller)

    async with asyncio.TaskGroup() as group:
        while time.perf_counter() < end:
            if free:
                group.create_task(send(sent))
                sent += 1
            await asyncio.sleep(1.0 / RATE)
    return sent


async def _cpu_share(router: Router, count: int) -> tuple[float, float, float]:
    """Percent of a core at the load with so many viewers, and the updates and bytes that each got a second."""
    async with callers(router.port, 64) as found, viewers(router.port, count) as counts:
        updates, size, before, began = *counts, router.cpu(), time.perf_counter()
        await _load(found, SECONDS)
        seconds = time.perf_counter() - began
        share = (router.cpu() - before) / seconds * 100.0
        each = max(1, count) * seconds
        return share, (counts[0] - updates) / each, (counts[1] - size) / each


async def _request_costs(kind: Kind, engines: Sequence[Engine]) -> list[Costs]:
    """CPU seconds of a request with the web UI and no viewer, and without."""

    async def cost(switch: int) -> float:
        router.signal(switch)
        right(await crowd(router.port, 32, lambda: "conversation ", seconds=WARM_SECONDS))
        before = router.cpu()
        outcome = right(await crowd(router.port, 32, lambda: "conversation ", seconds=TURN_SECONDS))
        return (router.cpu() - before) / max(1, outcome.done)

    async with started(replace(kind, module="benchmarks.router.switched"), engines) as router:
        return await in_turns(TURNS, cost)


async def measure() -> list[Figure]:
    kind = ours(internal=True)
    if INTERPRETED:
        kind = interpreted(kind)
    with_viewers: list[float] = []
    without: list[float] = []
    got: list[tuple[float, float]] = []
    async with fleet(ENGINES, interval=0.02) as engines, started(kind, engines) as router:
        for _ in range(ROUNDS):
            without.append((await _cpu_share(router, 0))[0])
            share, updates, size = await _cpu_share(router, VIEWERS)
            with_viewers.append(share)
            got.append((updates, size))
    async with fleet(FEW_ENGINES) as engines:
        costs = await _request_costs(kind, engines)
    extra = [after - before for after, before in zip(with_viewers, without, strict=True)]
    return [
        Figure(f"ui_{VIEWERS}_viewers_cpu", statistics.median(extra), "% of a core", "<=", TARGET),
        Figure("ui_updates_a_viewer", statistics.median(each for each, _ in got), "1/s"),
        Figure("ui_bytes_a_viewer", statistics.median(each for _, each in got), "B/s"),
        Figure("ui_load_cpu_without_viewers", statistics.median(without), "% of a core"),
        Figure("ui_request_cpu_off_by_on", statistics.median(each.without / each.on for each in costs), "", ">=", 0.99),
        Figure("ui_request_cpu_off_by_off", statistics.median(each.same for each in costs), ""),
    ]


def main() -> int:
    figures = uvloop.run(measure())
    return report(
        "router_ui_viewers",
        figures,
        viewers=str(VIEWERS),
        engines=str(ENGINES),
        rate=f"{RATE:g}/s",
        interpreted=str(INTERPRETED or find() is None),
    )


if __name__ == "__main__":
    sys.exit(main())
