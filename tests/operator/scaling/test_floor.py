"""The floor: what bursts would have cost with each, learnt from what was planned before they came."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_operator.scaling.floor import LEVELS, Floor

ALLOWED, AIMED = 0.05, 0.04
LEAD, KEPT = 50.0, 170.0


def fed(rates: list[float], floor: Floor | None = None, start: float = 1000.0, kept: float = KEPT) -> Floor:
    """Looks each ten seconds, of which each plans for what it sees."""
    floor = floor or Floor()
    for index, rate in enumerate(rates):
        at, highest = start + 10 * index, max(rates[max(0, index - 360) : index + 1])
        floor = floor.with_rate(at, rate, highest, LEAD, ALLOWED).with_plan(at, rate, LEAD, kept)
    return floor


def bursts(count: int, quiet: int = 60, burst: int = 12) -> list[float]:
    return ([12.0] * quiet + [24.0] * burst) * count


def test_a_load_that_is_followed_well_enough_needs_none() -> None:
    assert fed([12.0] * 300).rate(AIMED) == 0.0
    assert fed([60.0] * 300 + [0.5] * 100).rate(AIMED) == 0.0
    assert Floor().rate(AIMED) == 0.0


def test_bursts_that_come_again_and_again_are_met_halfway() -> None:
    floor = fed(bursts(5))
    assert 12.0 < floor.rate(AIMED) < 24.0
    # The more may be late, the lower.
    assert floor.rate(AIMED) > floor.rate(2 * AIMED)
    assert floor.rate(0.0) == 24.0


def test_rare_bursts_need_less_than_frequent_ones() -> None:
    assert fed(bursts(2, quiet=300)).rate(AIMED) < fed(bursts(10)).rate(AIMED)


def test_one_burst_says_what_each_floor_would_have_been_worth() -> None:
    floor = fed(bursts(1))
    assert list(floor.late) == sorted(floor.late, reverse=True)
    assert len(floor.late) == LEVELS
    # All that came before an engine could start was late with a low one, and as many as are allowed with the highest.
    assert floor.late[0] - floor.late[-1] > 0.7 * 24.0 * LEAD
    assert floor.late[-1] < ALLOWED * floor.requests


def test_a_second_burst_soon_after_meets_the_engines_of_the_first() -> None:
    again = [12.0] * 60 + [24.0] * 12 + [12.0] * 6
    assert fed([*again, *[24.0] * 3]).late[0] < fed(again).late[0] + ALLOWED * 24.0 * 30 + 1.0


def test_bursts_are_forgotten() -> None:
    floor = fed(bursts(5))
    assert fed([12.0] * 1500, floor, start=floor.at + 10).rate(AIMED) == 0.0


@pytest.mark.parametrize("passed", [-50.0, 181.0, 100_000.0])
def test_of_a_time_that_nothing_is_known_of_nothing_is_learnt(passed: float) -> None:
    floor = fed(bursts(3))
    after = floor.with_rate(floor.at + passed, 500.0, 500.0, LEAD, ALLOWED)
    assert (after.late, after.requests, after.plans) == (floor.late, floor.requests, ())
    assert floor.without_lately().late == floor.late


def test_after_a_rate_out_of_all_proportion_floors_are_as_high_as_they_were() -> None:
    usual = fed(bursts(10)).rate(AIMED)
    floor = fed([*bursts(2), *[1500.0] * 6, *bursts(30)])
    assert floor.top == 24.0
    assert floor.rate(AIMED) == pytest.approx(usual, rel=0.1)


@pytest.mark.parametrize("kept", [170.0, 650.0, 3650.0])
def test_what_a_burst_made_wanted_is_not_there_when_it_begins_however_long_plans_are_kept(kept: float) -> None:
    before = fed(bursts(10, quiet=400)[:-12], kept=kept)
    after = fed([24.0] * 5, before, start=before.at + 10, kept=kept)
    assert after.late[0] - before.late[0] > 0.9 * 24.0 * LEAD - 0.05 * before.late[0]


def test_a_higher_rate_keeps_what_is_known_of_lower_floors() -> None:
    floor = fed(bursts(5))
    higher = floor.with_rate(floor.at + 10, 24.0, 48.0, LEAD, ALLOWED)
    assert higher.top == 48.0
    assert higher.rate(AIMED) == pytest.approx(floor.rate(AIMED), rel=0.15)


def test_a_text_with_another_number_of_floors_is_read() -> None:
    floor = fed(bursts(5))
    short = Floor(floor.at, floor.top, floor.late[1::2], floor.requests, floor.plans)
    assert short.rate(AIMED) > 0.0
    assert len(short.with_rate(floor.at + 10, 12.0, 24.0, LEAD, ALLOWED).late) == LEVELS


def test_a_rate_out_of_all_proportion_is_only_late() -> None:
    floor = fed([0.0] * 30 + [1e300])
    assert floor.late[0] == pytest.approx(floor.requests)


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 1e5), min_size=1, max_size=120), st.floats(0.0, 1.0))
def test_it_is_bounded_and_small(rates: list[float], share: float) -> None:
    floor = fed(rates)
    assert 0.0 <= floor.rate(share) <= max(rates)
    assert len(floor.late) in (0, LEVELS)
    assert len(floor.plans) <= 46
