"""Bounds that hold at certain times: from each time of a cron expression, for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from croniter import croniter

_YEARS: Final = 5
"""An expression that names no time in so many years names none."""


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
    problem, lows, highs = "", list[int](), list[int]()
    for index, period in enumerate(periods):
        try:
            holds = period.holds(now)
        except ValueError as error:
            problem = problem or f"schedules[{index}]: {error}"
            continue
        if holds:
            lows += [] if period.least is None else [period.least]
            highs += [] if period.most is None else [period.most]
    low, high = max(lows, default=least), max(highs, default=most)
    return min(low, high) if highs else low, high if highs else max(low, high), problem


@lru_cache(maxsize=8192)
def _last_start(cron: str, zone: str, minute: int) -> float | str:
    """Unix time of the last time of ``cron`` that is not after this minute; or why there is none."""
    try:
        place = ZoneInfo(zone)
    except (ValueError, OSError, KeyError):  # KeyError: it is not in the database
        return f"time zone {zone!r} is not known"
    fields = cron.split()
    if len(fields) != 5 or any(part[:1] in "RrHh" for field in fields for part in field.split(",")):
        return f"cron {cron!r} is not five fields like '0 8 * * 1-5'"
    before = datetime.fromtimestamp(minute * 60 + 30, UTC).astimezone(place)
    try:
        times = croniter(cron, before, max_years_between_matches=_YEARS)
        found: datetime = times.get_prev(datetime)
    except (ValueError, KeyError) as error:
        return f"cron {cron!r}: {error}"
    return found.timestamp()
