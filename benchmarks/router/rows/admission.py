"""Keys and limits: two tenants share what there is, and two processes share one limit."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from benchmarks.figures import QUICK, Figure
from benchmarks.router.engines import fleet
from benchmarks.router.load import Wrong, crowd
from benchmarks.router.prompts import grouped
from benchmarks.router.rounds import Context
from benchmarks.router.routers import ours, started, write_config

SECONDS = 4.0 if QUICK else 15.0
WARM = 1.0
"""Seconds until all callers have found their places."""
LIMIT_SECONDS = 8.0 if QUICK else 30.0
SLOTS = 8
"""Requests an engine gets at the same time."""
LIMIT = 60_000
"""Tokens a minute."""


def write_keys(folder: Path, *keys: dict[str, object]) -> Path:
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": list(keys)}), encoding="utf-8")
    return path


async def run_fairness(context: Context) -> list[Figure]:
    """Key ``a`` has ten times as many callers as ``b``, which has twice as many as there are slots."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys = write_keys(folder, {"name": "a", "key": "sk-a", "weight": 1}, {"name": "b", "key": "sk-b", "weight": 1})
        async with fleet(delay=0.02) as engines:
            config = write_config(folder, [engine.url for engine in engines], queue={"endpoint_requests": SLOTS})
            async with started(ours("--keys", str(keys), "--config", str(config)), engines) as router:
                small = 2 * SLOTS * len(engines)
                a, b = await asyncio.gather(
                    crowd(router.port, 10 * small, grouped(1000), seconds=SECONDS, warm=WARM, key="sk-a"),
                    crowd(router.port, small, grouped(1000, 1), seconds=SECONDS, warm=WARM, key="sk-b"),
                )
    share = 100 * b.done / (a.done + b.done)
    return [
        Figure("fairness_share_of_b_at_least", share, "%", ">=", 45.0),
        Figure("fairness_share_of_b_at_most", share, "%", "<=", 55.0),
        Figure("fairness_errors", a.errors.total() + b.errors.total(), "errors", "<=", 0.0),
        Figure("fairness_requests_per_second", a.rate + b.rate, "req/s"),
    ]


async def run_workers(context: Context) -> list[Figure]:
    """Tokens that one key gets in the same time from one process and from two."""
    granted = [await _granted(workers) for workers in (1, 2)]
    return [
        Figure("workers_tokens_of_one_process", granted[0], "tokens"),
        Figure("workers_tokens_of_two_at_most", granted[1] / granted[0], "x", "<=", 1.05),
        Figure("workers_tokens_of_two_at_least", granted[1] / granted[0], "x", ">=", 0.95),
    ]


async def _granted(workers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        keys = write_keys(Path(folder), {"name": "a", "key": "sk-a", "tokens_per_minute": LIMIT})
        async with fleet(delay=0.005) as engines:
            kind = ours("--keys", str(keys), workers=workers)
            async with started(kind, engines, pinned=False) as router:
                outcome = await crowd(router.port, 32, grouped(400), seconds=LIMIT_SECONDS, key="sk-a")
    if set(outcome.errors) - {"status 429"}:
        raise Wrong(f"wrong responses: {dict(outcome.errors)}")
    return outcome.tokens
