"""PART=bench: what users get, beside transformers' continuous batching on the same GPU with the same weights.

Requests arrive at random (Poisson), with prompts and outputs of random lengths. For each system the highest rate is
found at which nine in ten requests have their first token within a second and their tokens no more than 50 ms apart;
time to first token and between tokens are compared at the highest rate that transformers sustains. Systems run one
after the other, each in a process of its own, on the same loads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from math import inf
from multiprocessing import get_context

from benchmarks.figures import QUICK, Figure
from benchmarks.gpu.generation import Answer, judge, transformers_model
from benchmarks.gpu.load import Engine, Experience, Served, System, Transformers, poisson
from benchmarks.gpu.machine import DRY, Results, remaining
from benchmarks.gpu.shapes import MODEL

TTFT = 1.0
TBT = 0.05
SECONDS = 0.5 if DRY else 5.0 if QUICK else 10.0
FIRST_RATE = 4.0
HIGHEST_RATE = 8.0 if DRY else 512.0
HALVINGS = 1 if QUICK or DRY else 3
RIGHT = 4
"""Outputs that are checked."""


def main() -> int:
    results = Results("bench")
    seen: dict[str, Experience] = {}
    rates: dict[str, float] = {}
    compared: dict[str, float] = {}

    def transformers() -> Iterator[Figure]:
        name = "transformers"
        seen[name], rates[name], compared[name], _ = _alone(name, 0.0, remaining() / 2)
        yield Figure("transformers_qps", rates["transformers"], "requests/s")
        yield from _figures("transformers", seen["transformers"])

    def engine() -> Iterator[Figure]:
        """At the rate of transformers; at its own where that failed."""
        name = "engine"
        seen[name], rates[name], _, right = _alone(name, compared.get("transformers", 0.0), remaining())
        yield Figure("tokens_right", right, "share", ">=", 0.99)
        yield Figure("engine_qps", rates["engine"], "requests/s")
        yield from _figures("engine", seen["engine"])

    def ratios() -> Iterator[Figure]:
        theirs, ours = seen["transformers"], seen["engine"]
        goal = 0.0 if DRY else 2.0
        yield Figure("compared_at", compared["transformers"], "requests/s")
        if rates["transformers"]:
            yield Figure("qps_ratio", rates["engine"] / rates["transformers"], "ratio", ">=", goal)
        yield Figure("ttft_ratio", theirs.ttft_median / ours.ttft_median, "ratio", ">=", goal)
        yield Figure("tbt_ratio", theirs.tbt_median / ours.tbt_median, "ratio", ">=", goal)

    beside = results.measure("transformers", transformers)
    if results.measure("engine", engine) and beside:
        results.measure("ratios", ratios)
    return results.finish()


def _figures(name: str, seen: Experience) -> Iterator[Figure]:
    yield Figure(f"{name}_ttft_median", seen.ttft_median * 1e3, "ms")
    yield Figure(f"{name}_ttft_p90", seen.ttft_p90 * 1e3, "ms")
    yield Figure(f"{name}_tbt_median", seen.tbt_median * 1e3, "ms")


def _alone(name: str, rate: float, seconds: float) -> tuple[Experience, float, float, float]:
    """:func:`measure` in a fresh process, so that each system has the GPU to itself."""
    os.environ["GPU_SECONDS"] = str(seconds)  # after which it looks for no higher rate
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, name, rate).result()


def measure(name: str, rate: float) -> tuple[Experience, float, float, float]:
    """What users see, the highest sustained rate (0: none was found), the rate at which they see it (``rate``; 0: the
    highest, or the lowest that was tried), and the share of right tokens."""
    system: Engine | Transformers = Engine(MODEL) if name == "engine" else Transformers(MODEL)
    try:
        system.serve(poisson(MODEL, FIRST_RATE, 1.0, seed=1))
        # Ours is looked for from four times theirs on.
        highest, lowest = highest_rate(name, system, min(HIGHEST_RATE, max(FIRST_RATE, 4 * rate)))
        rate = rate or highest or lowest
        load = poisson(MODEL, rate, SECONDS, seed=2)
        system.serve(load)
    finally:
        if isinstance(system, Transformers):
            system.close()
    right = _share_right(load[:RIGHT]) if isinstance(system, Engine) else 1.0
    return Experience.of(load), highest, rate, right


def highest_rate(name: str, system: System, first: float) -> tuple[float, float]:
    """Search the highest sustained rate by doubling or halving ``first``, then bisection; down to a sixteenth of a
    request a second. That rate, 0 when none is found in time, and the lowest that was tried."""

    def sustained(rate: float) -> bool:
        load = poisson(MODEL, rate, SECONDS)
        system.serve(load)
        seen = Experience.of(load)
        good = seen.ttft_p90 <= TTFT and seen.tbt_p90 <= TBT
        print(f"{name} at {rate:.3g} requests/s: {'good' if good else 'too slow'}, {seen}", flush=True)
        return good

    low, high, rate, lowest = 0.0, inf, first, first
    while remaining() > 0 and 1 / 16 <= rate <= HIGHEST_RATE and not (low and high < inf):
        lowest = min(lowest, rate)
        if sustained(rate):
            low, rate = rate, 2 * rate
        else:
            high, rate = rate, rate / 2
    for _ in range(HALVINGS if low and high < inf and remaining() > 0 else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if sustained(middle) else (low, middle)
    return low, lowest


def _share_right(load: list[Served]) -> float:
    return judge(transformers_model(MODEL), [Answer(one.token_ids, one.output) for one in load]).right


if __name__ == "__main__":
    sys.exit(main())
