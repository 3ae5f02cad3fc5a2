"""Endpoints come and go, and keys are replaced, under load: no client may notice."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path

from benchmarks.figures import QUICK, Figure
from benchmarks.router.engines import Engine, fleet
from benchmarks.router.load import Outcome, crowd
from benchmarks.router.prompts import grouped
from benchmarks.router.rounds import Context
from benchmarks.router.routers import Skipped, ours, started, write_config
from benchmarks.router.rows.admission import write_keys

SECONDS = 6.0 if QUICK else 30.0
USED: dict[str, object] = {"name": "a", "key": "sk-a"}


async def run(context: Context) -> list[Figure]:
    try:
        outcome, received = await _load(keys=True)
    except Skipped as reason:
        print(f"skipped: reload of keys: {reason}")
        outcome, received = await _load(keys=False)
    if outcome.errors:
        print(f"  errors: {dict(outcome.errors)}")
    return [
        Figure("reload_errors", outcome.errors.total(), "errors", "<=", 0.0),
        Figure("reload_requests", outcome.done, "requests"),
        # the endpoint that comes and goes must have been used, or nothing was tested
        Figure("reload_requests_of_the_changing_endpoint", received, "requests", ">=", 1.0),
    ]


async def _load(*, keys: bool) -> tuple[Outcome, int]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with fleet(delay=0.005) as engines:
            config = write_config(folder, [engine.url for engine in engines])
            options = ("--keys", str(write_keys(folder, USED))) if keys else ()
            async with started(ours("--config", str(config), *options), engines) as router:
                changing = asyncio.create_task(_change(folder, engines, keys=keys))
                outcome = await crowd(router.port, 32, grouped(2000), seconds=SECONDS, key="sk-a")
                changing.cancel()
                return outcome, engines[3].requests


async def _change(folder: Path, engines: list[Engine], *, keys: bool) -> None:
    for turn in itertools.count():
        await asyncio.sleep(1.0)
        write_config(folder, [engine.url for engine in engines[: 3 + turn % 2]])
        if keys:
            write_keys(folder, USED, {"name": f"new-{turn}", "key": f"sk-new-{turn}"})
