"""``make bench-scaling``: autoscalers on the same requests, beside one that knows the future, in simulated time.

Each policy that has a number to set gets the best of several for each trace: the cheapest that keeps the promise.
Figures are of seeds that nothing was fitted on. It ends with exit code 1 when ours misses a bound.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks import figures
from benchmarks.figures import QUICK, Figure
from benchmarks.scaling import pictures
from benchmarks.scaling.cost import decision_seconds
from benchmarks.scaling.engine import Profile
from benchmarks.scaling.oracle import best, cheapest_fixed, most_rate, oracle
from benchmarks.scaling.policies import concurrency, hpa, knative, llm_d, planner, slo
from benchmarks.scaling.rows import Row, mean_attainment, mean_hours, of
from benchmarks.scaling.traces import TRACES, Trace
from benchmarks.scaling.world import Promise, Result, Scaler, World, percentile
from blade_operator.scaling.capacity import LEAST_MEASUREMENTS, Capacity, Demand

PROFILE = Profile(fixed=0.024, per_request=0.00018, per_token=0.00013, start=40.0)
"""Six times what benchmarks/results/gpu_engine.json has of a model of 8 billion parameters on one H200: one of
about 50."""
PROMISE = Promise(ttft=2.0, tpot=0.1, share=0.95)
LEAST, MOST, FIRST = 1, 24, 4
"""Engines: the fewest, the most, and at the beginning."""
WINDOW = 120.0
"""Seconds for which fewer engines must have been enough, and in which directions are counted."""
SHARES = (0.5, 0.7, 1.0)
"""Of the requests in flight that an engine can have within the targets: what policies with such a number are set to."""
OURS, ORACLE = "ours, SLO", "oracle"
LENIENCE = 0.005
"""Of attainment: what counts as equal."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1 if QUICK else 3)
    parser.add_argument("--start", type=float, default=PROFILE.start, help="seconds until a new engine answers")
    parser.add_argument("--pictures", action="store_true", help="write docs/pictures/scaling-*.svg")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    work = [(index, seed, options.start) for seed in range(1, options.seeds + 1) for index in range(len(TRACES))]
    with multiprocessing.Pool(min(len(work), os.cpu_count() or 1)) as pool:
        rows = [row for found in pool.imap(_trace, work) for row in found]
    print(*table(rows), sep="\n")
    print(f"{options.seeds} seeds, engines start in {options.start:g} s, {time.perf_counter() - started:.0f} s")
    if options.pictures:
        pictures.write([trace(1) for trace in TRACES], [row for row in rows if row.seed == 1], rows, (OURS, ORACLE))
    found = [*results(rows), Figure("decision_cpu", 1e6 * decision_seconds(), "us", "<=", 1000.0)]
    return figures.report("scaling", found, seeds=str(options.seeds), start=f"{options.start:g} s")


def policies(profile: Profile, trace: Trace) -> dict[str, list[Callable[[], Scaler]]]:
    """Each with the settings that it is tried with."""
    requests = trace.requests()
    prompt = statistics.fmean(each.prompt for each in requests)
    completion = statistics.fmean(each.completion for each in requests)
    long_prompt = percentile(sorted(each.prompt for each in requests), PROMISE.share) or 0.0
    rate = most_rate(profile, prompt, completion, long_prompt, PROMISE)
    weights = (profile.fixed, profile.per_request, profile.per_token)
    tpot = Capacity(weights=weights, measurements=LEAST_MEASUREMENTS).predict(Demand(rate, prompt, completion)).tpot
    in_flight = rate * completion * tpot  # Little's law
    lengths = (prompt, completion, long_prompt)
    return {
        OURS: [partial(slo, profile, PROMISE, LEAST, MOST)],
        "ours, Concurrency": [partial(concurrency, profile, share * in_flight, LEAST, MOST) for share in SHARES],
        "HPA, KEDA": [partial(hpa, share * in_flight, LEAST, MOST) for share in SHARES],
        "Knative, KServe": [partial(knative, share * in_flight / 0.7, LEAST, MOST) for share in SHARES],
        "llm-d": [partial(llm_d, PROMISE, LEAST, MOST)],
        "Dynamo": [partial(planner, profile, lengths, PROMISE, LEAST, MOST)],
    }


def _trace(work: tuple[int, int, float]) -> list[Row]:
    """All policies on one trace."""
    index, seed, start = work
    trace = TRACES[index](seed)
    profile = Profile(PROFILE.fixed, PROFILE.per_request, PROFILE.per_token, start)
    found = {
        name: best([_run(profile, trace, scaler()) for scaler in scalers], PROMISE)
        for name, scalers in policies(profile, trace).items()
    }
    found["fixed"] = cheapest_fixed(profile, trace, PROMISE, LEAST, MOST)
    found[ORACLE] = best([oracle(profile, trace, PROMISE, LEAST, MOST), found["fixed"]], PROMISE)
    return [
        Row(
            trace.name,
            seed,
            name,
            result.attainment(PROMISE),
            result.hours,
            result.most_reversals(WINDOW),
            tuple(result.counts),
        )
        for name, result in found.items()
    ]


def _run(profile: Profile, trace: Trace, scaler: Scaler) -> Result:
    return World(profile, trace.requests(), FIRST, PROMISE).run(scaler, trace.seconds)


def table(rows: Sequence[Row]) -> list[str]:
    """As Markdown: means over the seeds, of reversals the most."""
    columns = ("trace", "policy", "in time", "replica-hours", "x oracle", "most reversals in 2 min")
    found = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for trace in dict.fromkeys(row.trace for row in rows):
        known = mean_hours(rows, trace, ORACLE)
        for policy in dict.fromkeys(row.policy for row in rows):
            these = of(rows, trace, policy)
            hours = mean_hours(rows, trace, policy)
            found.append(
                f"| {trace} | {policy} | {100 * mean_attainment(rows, trace, policy):.1f} % | {hours:.2f} "
                f"| {hours / known:.2f} | {max(row.reversals for row in these)} |"
            )
    return found


def results(rows: Sequence[Row]) -> list[Figure]:
    """Ours, with its bounds: the promise is kept, for at most a quarter more than who knows the future pays, and
    cheaper than whoever keeps it as well. Of the others, attainment and cost."""
    found = []
    for trace in dict.fromkeys(row.trace for row in rows):
        known = mean_hours(rows, trace, ORACLE)
        attained, hours = mean_attainment(rows, trace, OURS), mean_hours(rows, trace, OURS)
        found += [
            Figure(f"{trace}_attainment", attained, "of requests", ">=", PROMISE.share),
            Figure(f"{trace}_cost", hours / known, "x oracle", "<=", 1.25),
            Figure(f"{trace}_reversals", max(row.reversals for row in of(rows, trace, OURS)), "in 2 min", "<=", 1.0),
        ]
        rivals = [row.policy for row in rows if row.policy not in (OURS, ORACLE)]
        for policy in dict.fromkeys(rivals):
            name = policy.lower().replace(", ", "_").replace("-", "_")
            other = mean_hours(rows, trace, policy)
            equal = mean_attainment(rows, trace, policy) >= min(attained, PROMISE.share) - LENIENCE
            found += [
                Figure(f"{trace}_{name}_attainment", mean_attainment(rows, trace, policy), "of requests"),
                Figure(f"{trace}_{name}_cost", other / known, "x oracle", *((">=", hours / known) if equal else ())),
            ]
    return found


if __name__ == "__main__":
    sys.exit(main())
