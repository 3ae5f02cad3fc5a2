"""When a decision reaches the status: a changed number of engines at once, the rest once a minute on average."""

import dataclasses
from datetime import UTC, datetime

import pytest

from blade_operator.reconcile.scaling.publish import is_condition_to_publish, is_to_publish, published
from blade_operator.scaling.autoscaler import Autoscaler, Judgement, Verdict

FINE = Judgement("True", "Deciding", "")
START = 1_800_000_000.0


def decided(known: Autoscaler, engines: int, reason: str = "10 requests", judgement: Judgement = FINE) -> Autoscaler:
    return dataclasses.replace(known, verdict=Verdict(engines, engines, reason, judgement))


def write(known: Autoscaler, at: float) -> Autoscaler:
    was = int(known.status.get("replicas", known.verdict.engines))
    return published(known, "SLO", 1, 1, was, datetime.fromtimestamp(START + at, UTC))


def due(known: Autoscaler, at: float) -> bool:
    return is_to_publish(known, 1, 1, START + at)


@pytest.fixture
def known() -> Autoscaler:
    """After a write at 0."""
    first = Autoscaler("uid", 1, Verdict(1, 1, "10 requests", FINE), {}, FINE)
    assert due(first, 0)
    return write(first, 0)


def test_numbers_wait_for_a_minute_and_small_changes_for_ever(known: Autoscaler) -> None:
    assert not due(decided(known, 1, "12 requests"), 59)
    assert due(decided(known, 1, "12 requests"), 60)
    assert not due(decided(known, 1, "10.5 requests"), 600)
    assert due(decided(known, 1, "9 clouds"), 60)


def test_another_number_of_engines_and_another_spec_are_written_at_once(known: Autoscaler) -> None:
    assert due(decided(known, 2), 1)
    assert is_to_publish(known, 2, 1, START + 1)


def test_one_write_that_came_early_costs_nothing_and_several_are_paid_for(known: Autoscaler) -> None:
    known = write(decided(known, 2), 10)  # 50 s early
    other = decided(known, 2, "99 requests")
    assert not due(other, 10 + 59)
    assert due(other, 10 + 60)
    known = write(decided(known, 3), 20)
    assert not due(decided(known, 3, "99 requests"), 20 + 99)
    assert due(decided(known, 3, "99 requests"), 20 + 100)
    for at in (30, 40, 50, 60, 70):
        known = write(decided(known, known.verdict.engines + 1), at)
    assert not due(decided(known, known.verdict.engines, "99 requests"), 70 + 299)
    assert due(decided(known, known.verdict.engines, "99 requests"), 70 + 300), "but not for more than five minutes"


def test_another_condition_waits_for_no_more_than_a_minute(known: Autoscaler) -> None:
    known = write(decided(known, 2), 10)
    blind = decided(known, 2, judgement=Judgement("Unknown", "NoMetrics", "no router responds"))
    assert not is_condition_to_publish(blind, START + 69)
    assert is_condition_to_publish(blind, START + 70)
    assert due(blind, 70)
    assert not is_condition_to_publish(decided(known, 2, "99 requests"), START + 500)


def test_after_a_clock_went_back_nothing_waits_for_it(known: Autoscaler) -> None:
    jumped = decided(known, 1, "99 requests", Judgement("Unknown", "ClockJumped", ""))
    assert due(jumped, -3600)
    again = write(jumped, -3600)
    assert again.ahead == 0.0


def test_what_is_written_is_known_without_being_read(known: Autoscaler) -> None:
    assert known.saved is not None
    assert known.saved.replicas == 1
    later = write(decided(known, 3), 100)
    assert later.saved is not None
    assert (later.saved.at, later.saved.replicas) == (START + 100, 1)
    assert [change.split(" ", 1)[1] for change in later.status["changes"]] == ["1 -> 3: 10 requests"]
