"""Bounds that hold at certain times: from each time of a cron expression, for a while."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from blade_operator.cron import is_random, last_start, problem, zone_exists


@dataclass(frozen=True, slots=True)
class Period:
    """When certain bounds hold; those that are None are as they are otherwise."""

    cron: str
    """Five fields; when it begins."""
    time_zone: str
    """Name in the IANA database, in which ``cron`` is meant."""
    seconds: float
    """How long it lasts from each of these times."""
    least: int | None = None
    most: int | None = None

    def holds(self, now: datetime) -> bool:
        """Whether ``now`` is in it.

        Raises:
            ValueError: the expression or the time zone is none.
        """
        started = _last_start(self.cron, self.time_zone, int(now.timestamp() // 60))
        if isinstance(started, str):
            raise ValueError(started)
        return now.timestamp() - started < self.seconds


def bounds(periods: Sequence[Period], least: int, most: int, now: datetime) -> tuple[int, int, str]:
    """Fewest and most engines at ``now``, and what is wrong with the first period that cannot be read.

    Of periods that hold at the same time the larger numbers count.
    """
    wrong, lows, highs = "", list[int](), list[int]()
    for index, period in enumerate(periods):
        try:
            holds = period.holds(now)
        except ValueError as error:
            wrong = wrong or f"schedules[{index}]: {error}"
            continue
        if holds:
            lows += [] if period.least is None else [period.least]
            highs += [] if period.most is None else [period.most]
    low, high = max(lows, default=least), max(highs, default=most)
    return min(low, high) if highs else low, high if highs else max(low, high), wrong


@lru_cache(maxsize=8192)
def _last_start(cron: str, zone: str, minute: int) -> float | str:
    """Unix time of the last time of ``cron`` that is not after this minute; or why there is none."""
    if not zone_exists(zone):
        return f"time zone {zone!r} is not known"
    if len(cron.split()) != 5 or is_random(cron):
        return f"cron {cron!r} is not five fields like '0 8 * * 1-5'"
    if why := problem(cron):
        return f"cron {cron!r}: {why}"
    found = last_start(cron, zone, datetime.fromtimestamp(minute * 60, UTC))
    return -math.inf if found is None else found.timestamp()
