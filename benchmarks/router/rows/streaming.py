"""Streams: CPU time per token, time to the first one, delay of each, the most tokens per second, and 2,000 at once."""

from __future__ import annotations

import asyncio

from benchmarks.figures import QUICK, Figure
from benchmarks.router.engines import Engine, fleet
from benchmarks.router.load import Wrong, percentile, streams
from benchmarks.router.rounds import Context, Goal, Values, figures, one_by_one, side_by_side
from benchmarks.router.routers import Router

COUNT = 128


async def run(context: Context) -> list[Figure]:
    """128 streams of a token each 10 ms."""

    async def measure(router: Router, engines: list[Engine]) -> Values:
        before = router.cpu()
        seen = await streams(router.port, COUNT, 50 if QUICK else 100, 0.01)
        return {
            "cpu_per_token": (router.cpu() - before) / seen.tokens * 1e6,
            "ttft_p50": percentile(seen.ttft, 0.5) * 1e3,
            "relay_p99": percentile(seen.relays, 0.99) * 1e3,
        }

    results = await side_by_side(context.kinds(internal=True, both_forms=True), measure, interval=0.01)
    goals = {
        "cpu_per_token": Goal("us", "<=", 12.0, ratio=("sglang", 0.8)),
        "ttft_p50": Goal("ms", "<=", 5.0),
        "relay_p99": Goal("ms", "<=", 5.0),
    }
    return figures("streaming", results, goals)


async def run_fast(context: Context) -> list[Figure]:
    """128 streams of a token each 2 ms: 64,000 a second are offered."""

    async def measure(router: Router, engines: list[Engine]) -> Values:
        seen = await streams(router.port, COUNT, 400, 0.002)
        return {"tokens_per_second": seen.tokens / seen.seconds, "relay_p99": percentile(seen.relays, 0.99) * 1e3}

    results = await side_by_side(context.kinds(internal=True), measure, interval=0.002)
    async with fleet(1, interval=0.002) as [engine]:
        seen = await streams(engine.port, COUNT, 400, 0.002)
    made = figures(
        "fast_streams",
        results,
        {"tokens_per_second": Goal("tok/s", ">=", 60_000.0), "relay_p99": Goal("ms", "<=")},
    )
    return [*made, Figure("fast_streams_tokens_per_second_direct", seen.tokens / seen.seconds, "tok/s")]


async def run_many(context: Context) -> list[Figure]:
    """2,000 streams at the same time: how many engines saw together, and that all are whole."""
    count, tokens, interval = 2_000, 20 if QUICK else 50, 0.2

    async def measure(router: Router, engines: list[Engine]) -> Values:
        most = 0

        async def sample() -> None:
            nonlocal most
            while True:
                most = max(most, sum(engine.active for engine in engines))
                await asyncio.sleep(0.02)

        sampling = asyncio.create_task(sample())
        try:
            seen = await streams(router.port, count, tokens, interval)
        except Wrong as error:
            print(f"  {router.kind.name}: {error}")
            return {"at_once": float(most), "relay_p99": 0.0, "rss": router.rss(), "failed": 1.0}
        finally:
            sampling.cancel()
        relay = percentile(seen.relays, 0.99) * 1e3
        return {"at_once": float(most), "relay_p99": relay, "rss": router.rss(), "failed": 0.0}

    results = await one_by_one(context.kinds(internal=True), measure, rounds=1, interval=interval)
    goals = {
        "at_once": Goal("streams", ">=", float(count)),
        "failed": Goal("runs", "<=", 0.0),
        "relay_p99": Goal("ms", "<="),
        "rss": Goal("MiB", "<="),
    }
    return figures("many_streams", results, goals)
