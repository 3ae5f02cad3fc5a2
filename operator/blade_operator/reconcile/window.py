"""Maintenance windows: whether replacing engines may begin now, and when it may next.

Times are those of a clock on the wall in the window's zone. One that a clock change skips is an hour later that day;
of one that comes twice, the first counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from croniter import croniter

from blade_operator.spec.quantity import parse_duration
from blade_operator.spec.rollout_fields import Window

_SHIFT = timedelta(hours=3)
"""More than any clock change: so far around now are times of the wall clock whose order may be another one in UTC."""


_RANDOM = re.compile(r"(?<![A-Za-z])[HRhr](?![A-Za-z])")
"""Times by hash or at random, which ``croniter`` knows and cron does not: they would be others each time."""


def window_problem(window: Window | None) -> str:
    """What is wrong with ``window``, with the field to change; empty when nothing is."""
    if window is None:
        return ""
    return _problem(window.cron, window.duration, window.time_zone)


def is_open(window: Window, now: datetime) -> bool:
    """Whether ``now`` is in a valid ``window``."""
    opened = next((start for start in _starts(window, now + _SHIFT, back=True) if start <= now), None)
    return opened is not None and now < opened + timedelta(seconds=parse_duration(window.duration))


def next_opening(window: Window, now: datetime) -> datetime | None:
    """When a valid ``window`` opens next after ``now``; None: not in the next years."""
    return next((start for start in _starts(window, now - _SHIFT, back=False) if start > now), None)


def _starts(window: Window, origin: datetime, *, back: bool) -> Iterator[datetime]:
    """Times in UTC at which ``window`` opens, from ``origin`` back or onwards."""
    zone = ZoneInfo(window.time_zone)
    wall = croniter(window.cron, origin.astimezone(zone).replace(tzinfo=None))
    while True:
        try:
            start: datetime = wall.get_prev(datetime) if back else wall.get_next(datetime)
        except ValueError:
            return  # none within the years that are searched
        yield start.replace(tzinfo=zone).astimezone(UTC)


@lru_cache(maxsize=256)
def _problem(cron: str, duration: str, time_zone: str) -> str:
    try:
        ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"spec.rollout.window.timeZone: there is no time zone {time_zone!r}; use one like UTC or Europe/Berlin"
    if _RANDOM.search(cron):
        return f"spec.rollout.window.cron: {cron!r} names no fixed time: write numbers in place of H and R"
    try:
        croniter(cron, datetime(2000, 1, 1)).get_next(datetime)
    except (ValueError, KeyError) as error:
        why = str(error).removeprefix(f"[{cron}] ")
        return f"spec.rollout.window.cron: {cron!r} names no time: {why}; use minute, hour, day, month, weekday"
    if parse_duration(duration) <= 0:
        return "spec.rollout.window.duration: must be more than 0: the window would never be open"
    return ""
