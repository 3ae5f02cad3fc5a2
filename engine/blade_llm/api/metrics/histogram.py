"""Histograms whose numbers lie in memory that processes share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from blade_llm.api.metrics.catalogue import CATALOGUE

Counters: TypeAlias = "memoryview[float] | list[float]"
"""Counters of one API-server process."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Where a histogram's numbers lie: one count a bucket (not cumulative), the infinite one last, then the sum."""

    name: str
    buckets: tuple[float, ...]
    begin: int

    @property
    def end(self) -> int:
        """Where the next numbers may lie."""
        return self.begin + len(self.buckets) + 2

    def observe(self, counters: Counters, value: float) -> None:
        """Count one value."""
        counters[self.begin + bisect_left(self.buckets, value)] += 1
        counters[self.end - 1] += value

    def add(self, counters: Counters, counts: Sequence[int], total: float) -> None:
        """Count values that were sorted into the buckets before. ``total``: their sum."""
        for number, count in enumerate(counts, self.begin):
            counters[number] += count
        counters[self.end - 1] += total

    def family(self, totals: Sequence[float]) -> Metric:
        """The metric. ``totals``: the counters of all processes, added up."""
        bounds = [*map(floatToGoString, self.buckets), "+Inf"]
        *counts, sum_value = totals[self.begin : self.end]
        pairs = list(zip(bounds, accumulate(counts), strict=True))
        return HistogramMetricFamily(self.name, CATALOGUE[self.name].text, buckets=pairs, sum_value=sum_value)


def laid_out(*histograms: tuple[str, tuple[float, ...]]) -> tuple[Histogram, ...]:
    """Histograms of these names and buckets, one behind the other."""
    found: list[Histogram] = []
    for name, buckets in histograms:
        found.append(Histogram(name, buckets, found[-1].end if found else 0))
    return tuple(found)
