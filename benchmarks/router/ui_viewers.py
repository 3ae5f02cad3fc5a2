"""What open pages of the web UI cost the router: CPU time with many viewers, and what requests cost with the web UI on.

Engines, load and viewers live in this process. The share is the difference of the router's CPU time with viewers and
without, at the same load, in turns.

    python -m benchmarks.router.ui_viewers    VIEWERS=100 ENGINES=64 RATE=50 SECONDS=10 ROUNDS=3 · INTERPRETED=1
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import AsyncIterator

import uvloop

from benchmarks.figures import Figure, report
from benchmarks.router.engines import fleet
from benchmarks.router.load import Caller, callers, crowd, request, right
from benchmarks.router.routers import Router, interpreted, ours, started

VIEWERS = int(os.environ.get("VIEWERS", "100"))
ENGINES = int(os.environ.get("ENGINES", "64"))
RATE = float(os.environ.get("RATE", "50"))
SECONDS = float(os.environ.get("SECONDS", "10"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
INTERPRETED = bool(os.environ.get("INTERPRETED"))
REQUESTS = int(os.environ.get("REQUESTS", "4000"))
"""Of each turn in which the cost of one is measured."""
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


async def measure() -> list[Figure]:
    kind = ours(internal=True)
    off = ours("--no-ui", internal=True)
    if INTERPRETED:
        kind, off = interpreted(kind), interpreted(off)
    with_viewers: list[float] = []
    without: list[float] = []
    got: list[tuple[float, float]] = []
    async with fleet(ENGINES, interval=0.02) as engines, started(kind, engines) as router:
        for _ in range(ROUNDS):
            without.append((await _cpu_share(router, 0))[0])
            share, updates, size = await _cpu_share(router, VIEWERS)
            with_viewers.append(share)
            got.append((updates, size))
    ratios: list[float] = []
    async with fleet(4) as engines, started(kind, engines) as router, started(off, engines) as bare:
        for turn in range(ROUNDS + 1):
            cost: dict[str, float] = {}
            for name, each in (("on", router), ("off", bare)):
                before = each.cpu()
                outcome = right(await crowd(each.port, 32, lambda: "conversation ", requests=REQUESTS))
                cost[name] = (each.cpu() - before) / max(1, outcome.done)
            if turn:  # the first warms both up
                ratios.append(cost["off"] / cost["on"])
    extra = [after - before for after, before in zip(with_viewers, without, strict=True)]
    return [
        Figure(f"ui_{VIEWERS}_viewers_cpu", statistics.median(extra), "% of a core", "<=", TARGET),
        Figure("ui_updates_a_viewer", statistics.median(each for each, _ in got), "1/s"),
        Figure("ui_bytes_a_viewer", statistics.median(each for _, each in got), "B/s"),
        Figure("ui_load_cpu_without_viewers", statistics.median(without), "% of a core"),
        Figure("ui_request_cpu_off_by_on", statistics.median(ratios), "", ">=", 0.99),
    ]


def main() -> int:
    figures = uvloop.run(measure())
    about = {"viewers": str(VIEWERS), "engines": str(ENGINES), "rate": f"{RATE:g}/s", "interpreted": str(INTERPRETED)}
    return report("router_ui_viewers", figures, **about)


if __name__ == "__main__":
    sys.exit(main())
