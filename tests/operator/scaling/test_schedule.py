"""Bounds by time: cron expressions in their time zones, through changes of the clock, and what is none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from blade_operator.scaling.schedule import Period, bounds


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


DAY = Period("0 8 * * 1-5", "Asia/Shanghai", 10 * 3600, least=2, most=None)
"""8 to 18 in Shanghai: 0 to 10 UTC."""


@pytest.mark.parametrize(
    ("now", "least"),
    [
        ("2026-11-30T00:00:00", 2),  # a Monday
        ("2026-11-30T09:59:59", 2),
        ("2026-11-30T10:00:00", 1),
        ("2026-11-29T23:59:59", 1),
        ("2026-11-28T03:00:00", 1),  # a Saturday
    ],
)
def test_a_period_holds_from_its_time_for_its_duration(now: str, least: int) -> None:
    assert bounds([DAY], 1, 8, at(now)) == (least, 8, "")


def test_a_period_lasts_as_long_when_clocks_change_in_it() -> None:
    night = Period("0 1 * * *", "Europe/Berlin", 3 * 3600, least=5)
    # On 29 March 2026 it is 3:00 right after 1:59:59 in Berlin, and 1:00 is 0:00 UTC.
    assert bounds([night], 1, 8, at("2026-03-29T02:59:59"))[0] == 5
    assert bounds([night], 1, 8, at("2026-03-29T03:00:00"))[0] == 1


def test_of_periods_at_the_same_time_the_larger_numbers_count() -> None:
    periods = [Period("0 * * * *", "UTC", 3600, 2, 3), Period("0 * * * *", "UTC", 3600, 1, 6)]
    assert bounds(periods, 1, 8, at("2026-01-01T00:30:00")) == (2, 6, "")


def test_min_and_max_stay_in_order() -> None:
    now = at("2026-01-01T00:30:00")
    assert bounds([Period("0 * * * *", "UTC", 3600, most=2)], 4, 8, now) == (2, 2, "")
    assert bounds([Period("0 * * * *", "UTC", 3600, least=9)], 4, 8, now) == (9, 9, "")


@pytest.mark.parametrize(
    ("cron", "zone", "says"),
    [
        ("nonsense", "UTC", "five fields"),
        ("0 8 * *", "UTC", "five fields"),
        ("0 8 * * * *", "UTC", "five fields"),
        ("61 8 * * *", "UTC", "cron '61 8 * * *'"),
        ("*/0 * * * *", "UTC", "cron '*/0 * * * *'"),
        ("0 0 30 2 *", "UTC", "cron '0 0 30 2 *'"),
        ("R R * * *", "UTC", "five fields"),
        ("0 8 * * *", "Mars/Olympus", "time zone 'Mars/Olympus'"),
        ("0 8 * * *", "../../etc/passwd", "time zone"),
        ("0 8 * * *", "", "time zone"),
    ],
)
def test_what_is_no_schedule_is_named_and_the_others_hold(cron: str, zone: str, says: str) -> None:
    least, most, problem = bounds([Period(cron, zone, 3600, 3, 3), DAY], 1, 8, at("2026-11-30T01:00:00"))
    assert (least, most) == (2, 8)
    assert problem.startswith("schedules[0]: ")
    assert says in problem
