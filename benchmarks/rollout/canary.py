"""Canaries by simulation: how many good ones are aborted, and how many requests meet a bad one before it is.

    python -m benchmarks.rollout.canary        QUICK=1 for the short form

The router's own counting and the operator's own judgement, on requests that are drawn: their TTFT is log-normal with a
tail of long prompts, moves with a load that both revisions share and with luck that each has of its own for a few
seconds (the queue of its engines), some fail, lengths are log-normal and end by themselves or by a limit. The operator
looks every three seconds. Requests that a canary meets ``beyond its weight`` are those of it that come above the weight
it has, and all of it between the look that aborts it and the routers' knowing so.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.figures import QUICK, Figure, report
from blade_operator.analysis.compare import Tolerances, judge
from blade_router.statistics.revisions import Comparison

LOOK = 3.0
"""Seconds between two looks of the operator: as long as requests are in flight."""
DELAY = 1.0
"""Seconds until routers have a changed weight: the API server's watch, with room to spare."""
RUNS_GOOD = 60 if QUICK else 250
RUNS_BAD = 10 if QUICK else 20
MIN_REQUESTS = 200
_REASONS = (b'"finish_reason":"stop"', b'"finish_reason":"length"')


@dataclass(frozen=True)
class World:
    """Requests, and what a canary does to them."""

    rate: float
    """Requests a second."""
    interval: float
    """Seconds of a step, at least: it also takes ``MIN_REQUESTS`` of the canary."""
    steps: tuple[int, ...] = (5, 25, 50)
    errors: float = 0.002
    extra_errors: float = 0.0
    slower: float = 1.0
    """Times the TTFT of the canary is longer."""
    slower_tokens: float = 1.0
    limited: float = 0.15
    """Share of responses that a limit ends."""
    more_limited: float = 0.0
    luck: float = 0.1
    """Standard deviation of a revision's own load, in logarithms."""


@dataclass(frozen=True)
class Outcome:
    """What became of one canary."""

    aborted: str
    """Why; empty: it was not."""
    met: int
    """Requests that it answered."""
    beyond: int
    """Those of them beyond its weight."""
    requests: int
    """All requests of the service while it ran."""
    seconds: float


def moving(draw: np.random.Generator, times: np.ndarray, memory: float, spread: float) -> np.ndarray:
    """A load that forgets within ``memory`` seconds (an Ornstein-Uhlenbeck process), at each of ``times``."""
    grid = np.arange(0.0, times[-1] + 2.0, 0.5)
    keep = np.exp(-0.5 / memory)
    shocks = draw.normal(0.0, spread * np.sqrt(1 - keep * keep), len(grid))
    values = np.empty(len(grid))
    values[0] = draw.normal(0.0, spread)
    for index in range(1, len(grid)):
        values[index] = keep * values[index - 1] + shocks[index]
    return np.interp(times, grid, values)


def run(world: World, seed: int) -> Outcome:
    """One canary through its steps, or until it is aborted."""
    draw = np.random.default_rng(seed)
    tolerances = Tolerances()
    began, met, requests, allowed = 0.0, 0, 0, 0.0
    comparison: Comparison | None = None
    for weight in world.steps:
        comparison = Comparison({"new": weight, "old": 100 - weight}, began, comparison)
        interval = max(world.interval, MIN_REQUESTS * 100.0 / weight / world.rate)
        count = int(world.rate * interval)
        times = began + np.sort(draw.uniform(0.0, interval, count))
        # Exact shares, as the router splits requests without a session.
        is_new = np.diff(np.floor(np.arange(count + 1) * weight / 100.0 + draw.uniform())) > 0
        shared = moving(draw, times - began, 60.0, 0.5)
        own = [moving(draw, times - began, 3.0, world.luck) for _ in range(2)]
        long_prompt = np.where(draw.uniform(size=count) < 0.05, draw.exponential(1.5, count), 0.0)
        ttft = np.exp(np.log(0.15) + 0.6 * draw.normal(size=count) + shared + np.where(is_new, *own) + long_prompt)
        ttft = np.where(is_new, ttft * world.slower, ttft)
        tpot = np.exp(np.log(0.02) + 0.2 * draw.normal(size=count) + 0.3 * shared)
        tpot = np.where(is_new, tpot * world.slower_tokens, tpot)
        tokens = np.clip(np.exp(draw.normal(4.5, 1.0, count)), 1, 4000).astype(int)
        failed = draw.uniform(size=count) < np.where(is_new, world.errors + world.extra_errors, world.errors)
        limited = draw.uniform(size=count) < np.where(is_new, world.limited + world.more_limited, world.limited)
        ends = times + np.where(failed, 0.0, ttft + tpot * tokens)
        looked = began
        for index in np.argsort(ends):
            now = float(ends[index])
            if now > began + interval:
                break
            while now > looked + LOOK:
                looked += LOOK
                signals = {each.revision: each for each in comparison.signals()}
                judgement = judge(signals["new"], signals["old"], tolerances, len(world.steps))
                if judgement.bad:
                    sent = int((is_new & (times <= looked)).sum())
                    late = int((is_new & (times > looked) & (times <= looked + DELAY)).sum())
                    allowed += weight / 100.0 * int((times <= looked).sum())
                    total = requests + int((times <= looked + DELAY).sum())
                    beyond = max(0, round(met + sent - allowed)) + late
                    return Outcome(judgement.bad[0], met + sent + late, beyond, total, looked)
            place = 0 if is_new[index] else 1  # by name
            if failed[index]:
                comparison.failed(place)
            else:
                sent_at = float(times[index])
                answered = sent_at + float(ttft[index])
                length = int(tokens[index])
                comparison.succeeded(place, sent_at, answered, now, True, length, _REASONS[int(limited[index])])
        met += int(is_new.sum())
        allowed += weight / 100.0 * count
        requests += count
        began += interval
    return Outcome("", met, 0, requests, began)


def measure(name: str, world: World) -> list[Figure]:
    """Good canaries and bad ones of one world."""
    good = [run(world, seed) for seed in range(RUNS_GOOD)]
    figures = [Figure(f"{name}_good_aborted", sum(bool(each.aborted) for each in good), f"of {len(good)}")]
    for kind, bad in (
        ("errors_5_percent", replace(world, extra_errors=0.05)),
        ("ttft_x1.5", replace(world, slower=1.5)),
        ("tpot_x1.5", replace(world, slower_tokens=1.5)),
        ("cut_short", replace(world, more_limited=0.4)),
    ):
        found = [run(bad, seed) for seed in range(RUNS_BAD)]
        aborted = [each for each in found if each.aborted]
        figures += [
            Figure(f"{name}_{kind}_aborted", len(aborted) / len(found), "of runs", ">=", 1.0),
            Figure(f"{name}_{kind}_met", float(np.median([each.met for each in found])), "requests, median"),
            Figure(f"{name}_{kind}_seconds", float(np.median([each.seconds for each in found])), "s, median"),
            Figure(
                f"{name}_{kind}_beyond_weight", max(each.beyond / each.requests for each in found), "of all", "<=", 0.01
            ),
        ]
    return figures


WORLDS = {
    "5_rps": World(5.0, 300.0),
    "20_rps": World(20.0, 120.0),
    "100_rps": World(100.0, 60.0),
    "20_rps_steps_1_10_50": World(20.0, 120.0, steps=(1, 10, 50)),
}


def main() -> int:
    """Measure every world; the exit code."""
    figures = [figure for name, world in WORLDS.items() for figure in measure(name, world)]
    good = [figure for figure in figures if figure.name.endswith("_good_aborted")]
    runs = RUNS_GOOD * len(good)
    figures.append(Figure("good_aborted", sum(each.value for each in good) / runs, f"of {runs} runs", "<=", 0.01))
    return report("canary", figures)


if __name__ == "__main__":
    sys.exit(main())
