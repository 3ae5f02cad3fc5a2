"""Distributions of durations: one count gives a Prometheus histogram and percentiles of the last minute.

Buckets are fixed and logarithmic, about 13 % wide, so that observing is a bisection and two additions, whatever came
before. The last minute is a ring of slots; the owner of a distribution rotates it.
"""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0)
"""Upper bounds in seconds of the Prometheus buckets of whole responses: long ones take many minutes."""
FIRST_BUCKETS = (0.001, 0.0025, *BUCKETS[:-3])
"""The same, for times to a first byte and in the queue."""
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.016, 0.025, 0.04, 0.063, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""The same, for seconds per token."""
SLOT_SECONDS = 5.0
SLOTS = 13
"""Twelve whole ones and the current one."""
_STEPS = (1.0, 1.12, 1.25, 1.41, 1.6, 1.8, 2.0, 2.25, 2.5, 2.83, 3.2, 3.6, 4.0, 4.5, 5.0, 5.6, 6.3, 7.1, 8.0, 9.0)
BOUNDS = sorted({*(float(f"{step}e{power}") for power in range(-4, 3) for step in _STEPS), *BUCKETS, *TOKEN_BUCKETS})
"""Upper bounds in seconds of the counted buckets."""


class Distribution:
    """A distribution of durations in seconds."""

    __slots__ = ("_current", "_older", "_ring", "_slot", "_sum")

    def __init__(self) -> None:
        self._older = [0] * (len(BOUNDS) + 1)
        """Counts of the slots that have left the ring."""
        self._ring = [[0] * len(self._older) for _ in range(SLOTS)]
        self._slot = 0
        self._current = self._ring[0]
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._current[bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds

    def rotate(self, slots: int = 1) -> None:
        """Begin a new slot after ``SLOT_SECONDS``, or several."""
        for _ in range(min(slots, SLOTS)):
            self._slot = (self._slot + 1) % SLOTS
            leaving = self._ring[self._slot]
            for index, count in enumerate(leaving):
                if count:
                    self._older[index] += count
                    leaving[index] = 0
        self._current = self._ring[self._slot]

    def percentiles(self, *parts: float) -> list[float]:
        """Percentiles of the last minute, e.g. 0.5 and 0.99: upper bounds, at most 14 % too high. 0 when idle."""
        counts = [sum(column) for column in zip(*self._ring, strict=True)]
        return [_percentile(counts, part) for part in parts]

    def totals(self) -> tuple[list[int], float]:
        """Counts since the start, one more than ``BOUNDS``, and the sum of all durations."""
        return [sum(column) for column in zip(self._older, *self._ring, strict=True)], self._sum


def histogram_family(name: str, text: str, buckets: Sequence[float], *parts: Distribution) -> HistogramMetricFamily:
    """The Prometheus histogram of what ``parts`` counted together."""
    totals = [part.totals() for part in parts]
    counts = [sum(column) for column in zip(*(counts for counts, _ in totals), strict=True)]
    found: list[tuple[str, float]] = []
    cumulative = done = 0
    for bound in buckets:
        end = bisect_left(BOUNDS, bound) + 1
        cumulative += sum(counts[done:end])
        done = end
        found.append((str(bound), cumulative))
    found.append(("+Inf", cumulative + sum(counts[done:])))
    return HistogramMetricFamily(name, text, buckets=found, sum_value=sum(total for _, total in totals))


def _percentile(counts: list[int], part: float) -> float:
    rank = part * sum(counts)
    if not rank:
        return 0.0
    passed = 0
    for bound, count in zip(BOUNDS, counts, strict=False):
        passed += count
        if passed >= rank:
            return bound
    return BOUNDS[-1]
