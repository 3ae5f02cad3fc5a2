"""Distributions of durations: one count gives a Prometheus histogram and percentiles of the last minute.

Buckets are fixed and logarithmic, about 26 % wide, so that observing is a bisection and two additions, whatever came
before. The last minute is a ring of slots of five seconds.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

from prometheus_client.core import HistogramMetricFamily

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds in seconds of what Prometheus gets."""
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.016, 0.025, 0.04, 0.063, 0.1, 0.25, 0.5, 1.0, 2.5)
"""The same, for seconds per token."""
SLOT_SECONDS = 5.0
SLOTS = 13
"""Twelve whole ones and the one that runs."""
_STEPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)
_FINE = [float(f"{step}e{power}") for power in range(-4, 3) for step in _STEPS]


class Distribution:
    """Of durations in seconds."""

    def __init__(self, buckets: Sequence[float] = BUCKETS, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = buckets
        self._bounds = sorted({*_FINE, *buckets})
        self._clock = clock
        self._older = [0] * (len(self._bounds) + 1)
        """Counts of what has left the ring."""
        self._ring = [[0] * len(self._older) for _ in range(SLOTS)]
        self._slot = 0
        self._current = self._ring[0]
        self._ends = clock() + SLOT_SECONDS
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        if self._clock() >= self._ends:
            self._turn()
        self._current[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    def percentiles(self, *parts: float) -> list[float]:
        """Those of the last minute, e.g. for 0.5 and 0.99: upper bounds, at most 26 % too high. 0 when it was idle."""
        if self._clock() >= self._ends:
            self._turn()
        counts = [sum(column) for column in zip(*self._ring, strict=True)]
        return [self._percentile(counts, part) for part in parts]

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        """For Prometheus."""
        counts = [sum(column) for column in zip(self._older, *self._ring, strict=True)]
        buckets: list[tuple[str, float]] = []
        cumulative, done = 0, 0
        for bound in self._buckets:
            end = bisect_left(self._bounds, bound) + 1
            cumulative += sum(counts[done:end])
            done = end
            buckets.append((str(bound), cumulative))
        buckets.append(("+Inf", cumulative + sum(counts[done:])))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self.sum)

    def _percentile(self, counts: list[int], part: float) -> float:
        rank = part * sum(counts)
        if not rank:
            return 0.0
        passed = 0.0
        for bound, count in zip(self._bounds, counts, strict=False):
            passed += count
            if passed >= rank:
                return bound
        return self._bounds[-1]

    def _turn(self) -> None:
        """Go on to the slot of now."""
        steps = int((self._clock() - self._ends) / SLOT_SECONDS) + 1
        self._ends += steps * SLOT_SECONDS
        for _ in range(min(steps, SLOTS)):
            self._slot = (self._slot + 1) % SLOTS
            leaving = self._ring[self._slot]
            for index, count in enumerate(leaving):
                if count:
                    self._older[index] += count
                    leaving[index] = 0
        self._current = self._ring[self._slot]
