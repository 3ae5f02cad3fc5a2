"""What a cell's results come to: the best other policy, and how far ours is from it and from the oracle."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.routing.cell import Cell
from benchmarks.routing.policies import ORACLE, OURS, PEERS
from benchmarks.routing.simulation import Result

GOODPUT, P99 = 0.97, 1.1
"""What must hold in each cell, beside the best other policy."""
REGRET = 0.03


@dataclass(frozen=True)
class Row:
    """One cell: each policy's results over the seeds."""

    cell: Cell
    results: dict[str, Result]

    def _best(self) -> tuple[float, float]:
        others = [self.results[name] for name in PEERS]
        return max(other.goodput for other in others), min(other.p99 for other in others)

    def goodput(self, name: str = OURS) -> float:
        """Goodput beside the best of other routers."""
        return self.results[name].goodput / self._best()[0]

    def p99(self, name: str = OURS) -> float:
        """p99 of the time to the first token beside the best of other routers."""
        return self.results[name].p99 / self._best()[1]

    def regret(self, name: str = OURS) -> float:
        """The share of the oracle's goodput that is missing."""
        return 1.0 - self.results[name].goodput / self.results[ORACLE].goodput

    def holds(self) -> bool:
        return self.goodput() >= GOODPUT and self.p99() <= P99


def average(runs: Sequence[dict[str, Result]]) -> dict[str, Result]:
    """The mean of several seeds; of tails the median."""
    return {
        name: Result(
            goodput=statistics.fmean(run[name].goodput for run in runs),
            p50=statistics.median(run[name].p50 for run in runs),
            p99=statistics.median(run[name].p99 for run in runs),
            hit_rate=statistics.fmean(run[name].hit_rate for run in runs),
            imbalance=statistics.fmean(run[name].imbalance for run in runs),
            copies=statistics.fmean(run[name].copies for run in runs),
        )
        for name in runs[0]
    }


def mean_ratio(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))
