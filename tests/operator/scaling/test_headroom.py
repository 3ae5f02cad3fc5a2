"""Headroom: its margin grows with what was late in steady times, and it plans for no floor that was not seen."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_operator.scaling.headroom import AIM, MARGINS, MOST_FLOOR, Headroom

ALLOWED = 0.05


def fed(lates: list[float], *, steady: bool, start: Headroom | None = None) -> Headroom:
    headroom = start or Headroom(at=1000.0)
    for late in lates:
        headroom = headroom.with_late(headroom.at + 10, late, ALLOWED, steady=steady)
    return headroom


def test_steady_times_move_the_margin_and_others_do_not() -> None:
    before = Headroom(at=1000.0)
    assert fed([0.2], steady=True, start=before).margin > before.margin
    assert fed([0.0], steady=True, start=before).margin < before.margin
    changing = fed([0.2], steady=False, start=before)
    assert (changing.at, changing.margin) == (1010.0, before.margin)


def test_what_is_aimed_at_changes_no_margin() -> None:
    assert fed([AIM * ALLOWED] * 50, steady=True).margin == pytest.approx(Headroom().margin)


def test_the_share_that_is_late_comes_to_what_is_aimed_at() -> None:
    """As adaptive conformal inference promises: errors of a distribution that it does not know."""
    generator = random.Random(1)
    headroom, late = Headroom(at=1000.0), 0
    for _ in range(20_000):
        missed = generator.gauss(0.0, 0.1) > headroom.margin
        late += missed
        headroom = headroom.with_late(headroom.at + 10, 0.5 if missed else 0.0, 0.5 * ALLOWED / AIM, steady=True)
    assert late / 20_000 == pytest.approx(ALLOWED, abs=0.01)


def test_the_first_measurement_and_a_long_gap_count_for_no_more_than_a_minute() -> None:
    assert Headroom().with_late(5e8, 1.0, ALLOWED, steady=True).margin == Headroom().margin
    once = Headroom(at=1000.0).with_late(1060.0, 1.0, ALLOWED, steady=True)
    assert once.margin > Headroom().margin
    assert Headroom(at=1000.0).with_late(90_000.0, 1.0, ALLOWED, steady=True).margin == once.margin
    assert Headroom(at=1000.0).with_late(900.0, 1.0, ALLOWED, steady=True).margin == Headroom().margin


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=200), st.booleans())
def test_it_stays_within_its_bounds(lates: list[float], steady: bool) -> None:
    headroom = fed(lates, steady=steady)
    assert MARGINS[0] <= headroom.margin <= MARGINS[1]


def test_the_floor_is_no_higher_than_the_last_hour_had() -> None:
    headroom = Headroom(margin=0.0).with_rate(1000.0, 8.0).with_rate(1600.0, 12.0)
    assert headroom.planned(5.0, 10.0) == pytest.approx(10.0)
    assert headroom.planned(7.0, 30.0) == pytest.approx(12.0)
    assert headroom.planned(30.0, 10.0) == pytest.approx(30.0)


def test_a_service_that_idles_keeps_no_engines_for_its_busy_hours() -> None:
    headroom = Headroom(margin=0.0).with_rate(1000.0, 60.0)
    assert headroom.planned(0.5, 50.0) == pytest.approx(MOST_FLOOR * 0.5)


def test_the_margin_is_for_what_is_expected_and_not_for_the_floor() -> None:
    headroom = Headroom(margin=0.5).with_rate(1000.0, 12.0)
    assert headroom.planned(5.0, 0.0) == pytest.approx(5.0 * math.exp(0.5))
    assert headroom.planned(6.0, 11.0) == pytest.approx(11.0)


def test_the_highest_rate_is_forgotten_after_an_hour() -> None:
    headroom = Headroom(margin=0.0).with_rate(1000.0, 50.0)
    for at in range(1010, 1000 + 2 * 1800 + 10, 10):
        headroom = headroom.with_rate(float(at), 5.0)
    assert headroom.planned(5.0, 50.0) == pytest.approx(5.0)
    assert Headroom(margin=0.0).with_rate(1000.0, 50.0).with_rate(500.0, 5.0).planned(5.0, 50.0) == 5.0
