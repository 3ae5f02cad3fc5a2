"""Lengths of responses: a minute in which a burst begins does not make them short."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blade_operator.scaling.lengths import Lengths
from blade_operator.scaling.load import Load

STEADY = Load(1000.0, ready=2, arrivals=10.0, completion_tokens=2000.0)


def known(steps: int = 60) -> Lengths:
    lengths = Lengths()
    for step in range(steps):
        lengths = lengths.with_load(replace(STEADY, at=STEADY.at + 10 * step))
    return lengths


def test_nothing_is_known_at_first() -> None:
    assert Lengths().of(STEADY) == STEADY


def test_a_burst_has_the_tokens_that_are_to_come() -> None:
    burst = Load(1600.0, ready=2, arrivals=20.0, completion_tokens=2100.0)
    found = known().with_load(burst).of(burst)
    assert found.completion_tokens == pytest.approx(20.0 * 200.0, rel=0.05)
    assert replace(found, completion_tokens=2100.0) == burst


def test_other_lengths_are_learnt_within_minutes() -> None:
    lengths = known()
    for step in range(90):
        lengths = lengths.with_load(Load(1600.0 + 10 * step, ready=2, arrivals=10.0, completion_tokens=4000.0))
    assert lengths.of(STEADY).completion_tokens == pytest.approx(4000.0, rel=0.06)
