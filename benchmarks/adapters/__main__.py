"""``make bench-adapters``: where adapters are put, beside other control planes' rules, in simulated time.

Each rule gets the same engines, outages, requests and router. It ends with exit code 1 when ours does not have the best
hit rate, or loads more than engines lost, or with one copy more than the rule that keeps one, too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

from benchmarks import figures
from benchmarks.adapters.rules import OURS, RULES
from benchmarks.adapters.simulation import Result, Simulation, World
from benchmarks.figures import QUICK, Figure


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1 if QUICK else 5)
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    seconds = 300 if QUICK else World.seconds
    found: list[Figure] = []
    for prefix, world in {"": World(seconds=seconds), "short_": World(seconds=seconds, room=32)}.items():
        runs = {
            rule.name: [Simulation(world, rule, 100 * seed).run() for seed in range(options.seeds)] for rule in RULES
        }
        print(f"{world.adapters} adapters, {world.engines} engines with room for {world.room}", *table(runs), sep="\n")
        found += results(runs, prefix)
    print(f"{options.seeds} seeds, {seconds} simulated seconds, {time.perf_counter() - started:.0f} s")
    return figures.report("adapters", found, seeds=str(options.seeds), simulated=f"{seconds} s")


def table(runs: dict[str, list[Result]]) -> list[str]:
    """The rows of the rules, as Markdown."""
    columns = ("rule", "hit rate", "no engine", "first loads", "loads", "lost", "loads/lost", "busiest/mean")
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, results in runs.items():
        homeless = statistics.fmean(result.homeless / result.requests for result in results)
        rows.append(
            f"| {name} | {_hits(results):.4f} | {homeless:.4f} | {_mean(results, 'first_loads'):.0f} "
            f"| {_mean(results, 'loads'):.0f} | {_mean(results, 'lost'):.0f} | {_movement(results):.2f} "
            f"| {_mean(results, 'busiest'):.2f} |"
        )
    return rows


def results(runs: dict[str, list[Result]], prefix: str = "") -> list[Figure]:
    """The figures, and what must hold: two copies are hit most, and hardly a copy is loaded that was not lost.

    With one copy ours is beside the one rule that keeps one.
    """
    found = []
    for name, each in runs.items():
        goals: dict[str, tuple[str, float]] = {}
        if name == OURS[0]:
            goals["hit_rate"] = (">=", max(_hits(runs[other]) for other in runs if other not in OURS))
        if name in OURS and not prefix:  # where memory is short, requests load, too
            goals["movement"] = ("<=", 1.02)
        if name == OURS[1] and not prefix:
            goals["loads"] = ("<=", _mean(runs["aibrix_1"], "loads") * 1.02)
        found += [
            Figure(f"{prefix}{name}_hit_rate", _hits(each), "of requests", *goals.get("hit_rate", ("", 0.0))),
            Figure(f"{prefix}{name}_loads", _mean(each, "loads"), "loads", *goals.get("loads", ("", 0.0))),
        ]
        if any(result.lost for result in each):
            movement = Figure(
                f"{prefix}{name}_movement", _movement(each), "loads/lost copy", *goals.get("movement", ("", 0.0))
            )
            found.append(movement)
    return found


def _hits(results: Sequence[Result]) -> float:
    return statistics.fmean(result.hit_rate for result in results)


def _movement(results: Sequence[Result]) -> float:
    """Loads after the beginning for each copy that an engine lost: 1 is what has to be."""
    return sum(result.loads for result in results) / max(1, sum(result.lost for result in results))


def _mean(results: Sequence[Result], name: str) -> float:
    return statistics.fmean(float(getattr(result, name)) for result in results)


if __name__ == "__main__":
    sys.exit(main())
