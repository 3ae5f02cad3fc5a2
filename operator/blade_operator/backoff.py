"""Exponential back-off with jitter for whatever is retried after a failure."""

from __future__ import annotations

import random

BASE = 0.2
"""Seconds before the first retry."""
CAP = 60.0
"""Most seconds before any retry."""


def delay(failures: int) -> float:
    """Seconds, with jitter, before the retry after ``failures`` earlier failures: doubled each time, up to a minute."""
    return min(CAP, BASE * 2.0 ** min(failures, 20)) * random.uniform(0.8, 1.2)
