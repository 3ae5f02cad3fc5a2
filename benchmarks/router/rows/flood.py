"""One tenant's time to the first token, in calm and under attack; and what the attack does to the router's memory."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.figures import QUICK, Figure
from benchmarks.router.attackers import POISON, flood
from benchmarks.router.engines import Engine, fleet
from benchmarks.router.load import TIMEOUT, Wrong, open_caller, percentile, request, whole_stream
from benchmarks.router.load_reports import LoadReporter
from benchmarks.router.prompts import grouped
from benchmarks.router.rounds import Context
from benchmarks.router.routers import Router, ours, started, write_config
from benchmarks.router.rows.admission import write_keys

SECONDS: Final = 15.0 if QUICK else 60.0
CALLERS: Final = 8
TOKENS: Final = 20
INTERVAL: Final = 0.02
"""Seconds between tokens, and before the first."""
SLOTS: Final = 16
"""Requests that an engine runs at the same time."""
CONNECTIONS: Final = 1000
UPLOADS: Final = 64
POISONS: Final = 8.0
"""A second."""
HOG_STREAMS: Final = 200
HOG_TOKENS: Final = 100
PAUSE: Final = 0.1
"""Seconds the tenant thinks between two requests."""
HELD: Final = 256
"""Requests that may wait while no engine is ready: as the operator renders it."""
BODY_BUDGET_MIB: Final = 256
BASE_MIB: Final = 256


@dataclass
class Tenant:
    """What the tenant that only wants its answers gets."""

    ttft: list[float] = field(default_factory=list)
    """Seconds."""
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def p99(self) -> float:
        """In ms."""
        return percentile(self.ttft, 0.99) * 1e3


async def tenant(port: int, seconds: float) -> Tenant:
    """``CALLERS`` callers, each with one stream after the other for that many seconds."""
    found = Tenant()
    end = time.perf_counter() + seconds
    prompts = grouped(2000, 1)

    async def work() -> None:
        caller = await open_caller(port)
        while time.perf_counter() < end:
            try:
                if caller.closed:
                    caller = await open_caller(port)
                data, question = request(prompts(), stream=True, tokens=TOKENS, key="sk-tenant")
                begin = time.perf_counter()
                body = await caller.request(data, question, TIMEOUT)
                found.ttft.append(caller.first - begin)
                if not whole_stream(body, question, TOKENS):
                    raise Wrong("incomplete")
            except (Wrong, OSError) as error:
                found.errors[str(error)] += 1
            await asyncio.sleep(PAUSE)
        caller.transport.abort()

    await asyncio.gather(*(work() for _ in range(CALLERS)))
    return found


async def run(context: Context) -> list[Figure]:
    """A minute of calm, then a minute in which everybody attacks."""
    async with attacked_fleet() as (router, engines):
        calm = await tenant(router.port, SECONDS / 2)
        async with flood(
            router.port,
            grouped(1000),
            connections=CONNECTIONS,
            uploads=UPLOADS,
            poisons=POISONS,
            streams=HOG_STREAMS,
            tokens=HOG_TOKENS,
        ):
            await asyncio.sleep(2.0)
            memory = asyncio.create_task(_peak_memory(router, SECONDS))
            under_attack = await tenant(router.port, SECONDS)
            peak = await memory
        if under_attack.errors:
            print(f"  the tenant under attack: {dict(under_attack.errors)}")
    if calm.errors:
        raise Wrong(f"wrong responses in calm: {dict(calm.errors)}")
    return [
        Figure("flood_ttft_p99_calm", calm.p99, "ms"),
        Figure("flood_ttft_p99", under_attack.p99, "ms"),
        Figure("flood_ttft_p99_by_calm", under_attack.p99 / calm.p99, "x", "<=", 2.0),
        Figure("flood_errors", under_attack.errors.total(), "errors", "<=", 0.0),
        Figure("flood_requests", len(under_attack.ttft), "requests"),
        Figure("flood_engine_crashes", sum(engine.crashes for engine in engines), "crashes"),
        Figure("flood_rss", peak, "MiB", "<=", BASE_MIB + BODY_BUDGET_MIB),
    ]


@contextlib.asynccontextmanager
async def attacked_fleet() -> AsyncIterator[tuple[Router, list[Engine]]]:
    """A router with keys before engines that report their capacity, and crash when they are poisoned."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys = write_keys(folder, {"name": "hog", "key": "sk-hog"}, {"name": "tenant", "key": "sk-tenant"})
        async with fleet(slots=SLOTS, interval=INTERVAL, delay=INTERVAL, poison=POISON.encode()) as engines:
            for engine in engines:
                engine.publisher = LoadReporter(engine.load)
            urls = [engine.url for engine in engines]
            config = write_config(folder, urls, internal=True, hold={"max_requests": HELD})
            options = ("--keys", str(keys), "--config", str(config))
            async with started(ours(*options), engines) as router:
                yield router, engines


async def _peak_memory(router: Router, seconds: float) -> float:
    """The most MiB it had during that time."""
    peak = 0.0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        peak = max(peak, router.rss())
        await asyncio.sleep(0.2)
    return peak
