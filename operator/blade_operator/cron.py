"""Times of cron expressions, by a clock on the wall of some time zone.

One that a clock change skips is an hour later that day; of one that comes twice, the first counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from croniter import croniter

_SHIFT: Final = timedelta(hours=3)
"""More than any clock change: so far around now are times of the wall clock whose order may be another one in UTC."""
_RANDOM: Final = re.compile(r"(?<![A-Za-z])[HRhr](?![A-Za-z])")
"""Times by hash or at random, which ``croniter`` knows and cron does not: they would be others each time."""


def zone_exists(name: str) -> bool:
    """Whether the IANA database has a time zone of that name."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def is_random(expression: str) -> bool:
    """Whether some field is a time by hash or at random."""
    return _RANDOM.search(expression) is not None


@lru_cache(maxsize=1024)
def problem(expression: str) -> str:
    """Why ``expression`` names no time; empty when it names some."""
    try:
        croniter(expression, datetime(2000, 1, 1)).get_next(datetime)
    except (ValueError, KeyError) as error:
        return str(error).removeprefix(f"[{expression}] ")
    return ""


def last_start(expression: str, time_zone: str, now: datetime) -> datetime | None:
    """The last time, in UTC, that is not after ``now``; None: there is none in the years that are searched.

    ``expression`` has no :func:`problem`, and :func:`zone_exists`.
    """
    return next((start for start in _starts(expression, time_zone, now + _SHIFT, back=True) if start <= now), None)


def next_start(expression: str, time_zone: str, now: datetime) -> datetime | None:
    """The first time after ``now``; else as :func:`last_start`."""
    return next((start for start in _starts(expression, time_zone, now - _SHIFT, back=False) if start > now), None)


def _starts(expression: str, time_zone: str, origin: datetime, *, back: bool) -> Iterator[datetime]:
    """Times in UTC, from ``origin`` back or onwards."""
    zone = ZoneInfo(time_zone)
    wall = croniter(expression, origin.astimezone(zone).replace(tzinfo=None))
    while True:
        try:
            start: datetime = wall.get_prev(datetime) if back else wall.get_next(datetime)
        except ValueError:
            return  # none within the years that are searched
        yield start.replace(tzinfo=zone).astimezone(UTC)
