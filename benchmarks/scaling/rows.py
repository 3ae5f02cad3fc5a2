"""What is kept of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One policy on one trace."""

    trace: str
    seed: int
    policy: str
    attainment: float
    hours: float
    reversals: int
    counts: tuple[tuple[float, int], ...]
    """Engines decided, when that changed."""


def of(rows: Sequence[Row], trace: str, policy: str) -> list[Row]:
    """Of all seeds."""
    return [row for row in rows if row.trace == trace and row.policy == policy]


def mean_hours(rows: Sequence[Row], trace: str, policy: str) -> float:
    """Replica-hours."""
    return statistics.fmean(row.hours for row in of(rows, trace, policy))


def mean_attainment(rows: Sequence[Row], trace: str, policy: str) -> float:
    """Share of the requests within the targets."""
    return statistics.fmean(row.attainment for row in of(rows, trace, policy))
