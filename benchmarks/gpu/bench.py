"""PART=bench: what users get, beside transformers' continuous batching on the same GPU with the same weights.

Requests arrive at random (Poisson), with prompts and outputs of random lengths. For each system the highest rate is
found at which nine in ten requests have their first token within a second and their tokens no more than 50 ms apart;
time to first token and between tokens are compared at the highest rate that transformers sustains. Systems run one
after the other, each in a process of its own, on the same loads.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks.figures import QUICK, Figure
from benchmarks.gpu.generation import share_right, transformers_model
from benchmarks.gpu.load import Engine, Experience, Served, System, Transformers, poisson
from benchmarks.gpu.machine import DRY, finish
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
    theirs, their_rate, _ = _alone("transformers", 0.0)
    ours, our_rate, right = _alone("engine", their_rate)
    goal = 0.0 if DRY else 2.0
    return finish(
        "bench",
        [
            Figure("tokens_right", right, "share", ">=", 0.99),
            Figure("transformers_qps", their_rate, "requests/s"),
            Figure("engine_qps", our_rate, "requests/s"),
            Figure("qps_ratio", our_rate / their_rate, "ratio", ">=", goal),
            Figure("compared_at", their_rate, "requests/s"),
            Figure("transformers_ttft_median", theirs.ttft_median * 1e3, "ms"),
            Figure("engine_ttft_median", ours.ttft_median * 1e3, "ms"),
            Figure("ttft_ratio", theirs.ttft_median / ours.ttft_median, "ratio", ">=", goal),
            Figure("transformers_tbt_median", theirs.tbt_median * 1e3, "ms"),
            Figure("engine_tbt_median", ours.tbt_median * 1e3, "ms"),
            Figure("tbt_ratio", theirs.tbt_median / ours.tbt_median, "ratio", ">=", goal),
            Figure("engine_ttft_p90", ours.ttft_p90 * 1e3, "ms"),
            Figure("transformers_ttft_p90", theirs.ttft_p90 * 1e3, "ms"),
        ],
    )


def _alone(name: str, rate: float) -> tuple[Experience, float, float]:
    """:func:`measure` in a fresh process, so that each system has the GPU to itself."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, name, rate).result()


def measure(name: str, rate: float) -> tuple[Experience, float, float]:
    """What users see at ``rate`` (0: at the highest), the highest sustained rate, and the share of right tokens."""
    system: Engine | Transformers = Engine(MODEL) if name == "engine" else Transformers(MODEL)
    warm = poisson(MODEL, FIRST_RATE, 1.0, seed=1)
    system.serve(warm)
    highest = highest_rate(name, system)
    load = poisson(MODEL, rate or highest, SECONDS, seed=2)
    system.serve(load)
    right = 1.0
    if isinstance(system, Engine):
        right = _share_right(load[:RIGHT])
    else:
        system.close()
    return Experience.of(load), highest, right


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
        while rate < HIGHEST_RATE and sustained(2 * rate):
            rate *= 2
        low, high = rate, 2 * rate
        if rate >= HIGHEST_RATE:
            return rate
    else:
        while rate > 1 / 16 and not sustained(rate / 2):
            rate /= 2
        low, high = rate / 2, rate
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if sustained(middle) else (low, middle)
    return low


def _share_right(load: list[Served]) -> float:
    return share_right(transformers_model(MODEL), [one.token_ids for one in load], [one.output for one in load])


if __name__ == "__main__":
    sys.exit(main())
