"""Clients that leave, half requests and engines that fail, many thousand times: nobody else notices, and nothing leaks.

The router is a process of its own, compiled where it is; ``SOAK_SECONDS`` is how long, 60 by itself.
"""

import asyncio
import contextlib
import itertools
import os
import random
import time

import pytest
from benchmarks.router.engines import Engine, Mode, fleet
from benchmarks.router.load import crowd, open_caller, request
from benchmarks.router.prompts import grouped
from benchmarks.router.routers import ours, started

SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
GROWTH = 8.0
"""MiB that the process may grow in the second half: less than 300 bytes a request."""
MODES: tuple[Mode | None, ...] = (None, "500", "503", "reset", "hang")
"""How an engine fails; None: it is killed."""


async def leave(port: int, end: float, seed: int) -> None:
    """Requests whose client is gone in the middle of the upload, of the wait, or of the stream."""
    rng = random.Random(seed)
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            caller = await open_caller(port)
            data, question = request("leave " * rng.randrange(1, 400), stream=rng.random() < 0.7, tokens=200)
            if rng.random() < 0.2:
                caller.transport.write(data[: rng.randrange(1, len(data))])
                await asyncio.sleep(rng.random() * 0.02)
                caller.transport.abort()
                continue
            pending = asyncio.create_task(caller.request(data, question))
            await asyncio.sleep(rng.random() * 0.05)
            if rng.random() < 0.2:
                caller.transport.pause_reading()  # a slow one, so that the router has to wait for it
                await asyncio.sleep(0.2)
            caller.transport.abort()
            await asyncio.gather(pending, return_exceptions=True)


async def fail(engines: list[Engine], end: float) -> None:
    """One engine after the other fails for half a second."""
    for engine, mode in zip(itertools.cycle(engines), itertools.cycle(MODES), strict=False):
        await asyncio.sleep(0.5)
        if time.monotonic() >= end:
            return
        if mode is None:
            engine.kill()
        else:
            engine.mode = mode
        await asyncio.sleep(0.5)
        if mode is None:
            await engine.start()
        engine.mode = "ok"
        if mode == "hang":
            for connection in list(engine.connections):
                connection.cut()


@pytest.mark.soak
async def test_nobody_notices_who_leaves_and_what_fails_and_nothing_leaks() -> None:
    kind = ours("--first_byte_timeout", "1", internal=True)
    engine = {"delay": 0.002, "interval": 0.001, "cache_blocks": 5000}
    async with fleet(4, **engine) as engines, started(kind, engines) as router:
        end = time.monotonic() + SECONDS

        async def rss_at_half_time() -> float:
            await asyncio.sleep(SECONDS / 2)
            return router.rss()

        before, unary, streamed, *_ = await asyncio.gather(
            rss_at_half_time(),
            crowd(router.port, 8, grouped(2000), seconds=SECONDS),
            crowd(router.port, 8, grouped(2000, 1), seconds=SECONDS, stream=True, tokens=20),
            *(leave(router.port, end, seed) for seed in range(8)),
            fail(engines, end),
        )
        after, log = router.rss(), router.log()
    print(f"{unary.done} responses, {streamed.done} streams, {before:.1f} MiB, then {after:.1f}")
    assert (dict(unary.errors), dict(streamed.errors)) == ({}, {})
    assert "Traceback" not in log
    assert after - before < GROWTH
