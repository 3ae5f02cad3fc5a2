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

    def transformers() -> Iterator[Figure]:
        seen["transformers"], rates["transformers"], _ = _alone("transformers", 0.0, remaining() / 2)
        yield Figure("transformers_qps", rates["transformers"], "requests/s")
        yield from _figures("transformers", seen["transformers"])

    def engine() -> Iterator[Figure]:
        """At the rate of transformers; at its own where that failed."""
        seen["engine"], rates["engine"], right = _alone("engine", rates.get("transformers", 0.0), remaining())
        yield Figure("tokens_right", right, "share", ">=", 0.99)
        yield Figure("engine_qps", rates["engine"], "requests/s")
        yield from _figures("engine", seen["engine"])

    def ratios() -> list[Figure]:
        theirs, ours = seen["transformers"], seen["engine"]
        goal = 0.0 if DRY else 2.0
        return [
            Figure("compared_at", rates["transformers"], "requests/s"),
            Figure("qps_ratio", rates["engine"] / rates["transformers"], "ratio", ">=", goal),
            Figure("ttft_ratio", theirs.ttft_median / ours.ttft_median, "ratio", ">=", goal),
            Figure("tbt_ratio", theirs.tbt_median / ours.tbt_median, "ratio", ">=", goal),
        ]

    beside = results.measure("transformers", transformers)
    if results.measure("engine", engine) and beside:
        results.measure("ratios", ratios)
    return results.finish()


def _figures(name: str, seen: Experience) -> Iterator[Figure]:
    yield Figure(f"{name}_ttft_median", seen.ttft_median * 1e3, "ms")
    yield Figure(f"{name}_ttft_p90", seen.ttft_p90 * 1e3, "ms")
    yield Figure(f"{name}_tbt_median", seen.tbt_median * 1e3, "ms")


def _alone(name: str, rate: float, seconds: float) -> tuple[Experience, float, float]:
    """:func:`measure` in a fresh process, so that each system has the GPU to itself."""
    os.environ["GPU_SECONDS"] = str(seconds)  # after which it looks for no higher rate
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, name, rate).result()


def measure(name: str, rate: float) -> tuple[Experience, float, float]:
    """What users see at ``rate`` (0: at the highest), the highest sustained rate, and the share of right tokens."""
    system: Engine | Transformers = Engine(MODEL) if name == "engine" else Transformers(MODEL)
    try:
        system.serve(poisson(MODEL, FIRST_RATE, 1.0, seed=1))
        highest = highest_rate(name, system)
        load = poisson(MODEL, rate or highest, SECONDS, seed=2)
        system.serve(load)
    finally:
        if isinstance(system, Transformers):
            system.close()
    return Experience.of(load), highest, _share_right(load[:RIGHT]) if isinstance(system, Engine) else 1.0


def highest_rate(name: str, system: System) -> float:
    """Search the highest sustained rate by doubling, then bisection; down to a sixteenth of a request a second."""

    def sustained(rate: float) -> bool:
        load = poisson(MODEL, rate, SECONDS)
        system.serve(load)
        seen = Experience.of(load)
        good = seen.ttft_p90 <= TTFT and seen.tbt_p90 <= TBT
        print(f"{name} at {rate:.3g} requests/s: {'good' if good else 'too slow'}, {seen}", flush=True)
        return good

    rate = FIRST_RATE
    if sustained(rate):
        while rate < HIGHEST_RATE and remaining() > 0 and sustained(2 * rate):
            rate *= 2
        low, high = rate, 2 * rate
        if rate >= HIGHEST_RATE:
            return rate
    else:
        while rate > 1 / 16 and not sustained(rate / 2):
            rate /= 2
        low, high = rate / 2, rate
    for _ in range(HALVINGS if remaining() > 0 else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if sustained(middle) else (low, middle)
    return low


def _share_right(load: list[Served]) -> float:
    return judge(transformers_model(MODEL), [Answer(one.token_ids, one.output) for one in load]).right


if __name__ == "__main__":
    sys.exit(main())
