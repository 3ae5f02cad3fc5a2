"""Maintenance windows: whether replacing engines may begin now, and when it may next."""

from __future__ import annotations

from datetime import datetime, timedelta

from blade_operator.cron import is_random, last_start, next_start, problem, zone_exists
from blade_operator.spec.quantity import parse_duration
from blade_operator.spec.rollout_fields import Window


def window_problem(window: Window | None) -> str:
    """What is wrong with ``window``, with the field to change; empty when nothing is."""
    if window is None:
        return ""
    cron, zone = window.cron, window.time_zone
    if not zone_exists(zone):
        return f"spec.rollout.window.timeZone: there is no time zone {zone!r}; use one like UTC or Europe/Berlin"
    if is_random(cron):
        return f"spec.rollout.window.cron: {cron!r} names no fixed time: write numbers in place of H and R"
    if why := problem(cron):
        return f"spec.rollout.window.cron: {cron!r} names no time: {why}; use minute, hour, day, month, weekday"
    if parse_duration(window.duration) <= 0:
        return "spec.rollout.window.duration: must be more than 0: the window would never be open"
    return ""


def is_open(window: Window, now: datetime) -> bool:
    """Whether ``now`` is in a valid ``window``."""
    opened = last_start(window.cron, window.time_zone, now)
    return opened is not None and now < opened + timedelta(seconds=parse_duration(window.duration))


def next_opening(window: Window, now: datetime) -> datetime | None:
    """When a valid ``window`` opens next after ``now``; None: not in the next years."""
    return next_start(window.cron, window.time_zone, now)
