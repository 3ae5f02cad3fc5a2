"""Added latency of one request at a time: through the router, less that of the same engine without it."""

from __future__ import annotations

from benchmarks.figures import QUICK, Figure
from benchmarks.router.engines import Engine
from benchmarks.router.load import latency
from benchmarks.router.prompts import filler
from benchmarks.router.rounds import Context, Goal, Values, figures, side_by_side
from benchmarks.router.routers import Router

DIRECT = ("direct_p50", "direct_p99")
REQUESTS = 200 if QUICK else 700


async def run(context: Context) -> list[Figure]:
    text = filler(1, 2000)

    async def measure(router: Router, engines: list[Engine]) -> Values:
        direct = await latency(engines[0].port, REQUESTS, text)
        routed = await latency(router.port, REQUESTS, text)
        return {"p50": routed[0], "p99": routed[1], "direct_p50": direct[0], "direct_p99": direct[1]}

    results = await side_by_side(context.kinds(round_robin=True), measure)
    direct = {part: min(values[part] for each in results.values() for values in each) for part in DIRECT}
    for values in (values for each in results.values() for values in each):
        values["added_p50"] = values["p50"] - direct["direct_p50"]
        values["added_p99"] = values["p99"] - direct["direct_p99"]
    made = figures(
        "latency",
        results,
        {"added_p50": Goal("ms", "<=", 0.20, ratio=("sglang", 0.9)), "added_p99": Goal("ms", "<=", 0.35)},
    )
    return [*made, *(Figure(f"latency_{part}", value, "ms") for part, value in direct.items())]
