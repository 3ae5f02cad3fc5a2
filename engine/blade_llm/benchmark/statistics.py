"""Means and percentiles."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import msgspec

PERCENTILES: Final = (50, 90, 95, 99)


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """What a table shows of many values."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def distribution(values: Iterable[float]) -> Distribution | None:
    """None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p90, p95, p99 = (percentile(ordered, share) for share in PERCENTILES)
    mean = math.fsum(ordered) / len(ordered)
    return Distribution(count=len(ordered), mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, max=ordered[-1])


def percentile(ordered: list[float], percent: float) -> float:
    """A percentile of ascending values, with linear interpolation between neighbours (numpy's default)."""
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
