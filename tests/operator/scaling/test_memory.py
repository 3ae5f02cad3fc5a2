"""What an autoscaler remembers is bounded, and says what was needed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from blade_operator.scaling.load import Load
from blade_operator.scaling.memory import WINDOW, Changes, Peaks, Steady


@settings(deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=200), st.sampled_from([60.0, 120.0, 600.0]))
def test_peaks_are_those_of_the_window_and_few(needs: list[int], window: float) -> None:
    peaks = Peaks()
    for index, need in enumerate(needs):
        peaks = peaks.with_need(1000.0 + 10 * index, need, window)
    at = 1000.0 + 10 * (len(needs) - 1)
    recent = [need for index, need in enumerate(needs) if at - (1000.0 + 10 * index) <= window]
    longer = [need for index, need in enumerate(needs) if at - (1000.0 + 10 * index) <= 1.2 * window]
    assert max(recent) <= max(count for _, count in peaks.peaks) <= max(longer)
    assert len(peaks.peaks) <= 19


def test_what_was_before_the_first_need_is_not_known() -> None:
    peaks = Peaks().with_need(1000.0, 2, 120.0)
    assert peaks.most(1060.0, 120.0, 7) == 7
    assert peaks.most(1120.0, 120.0, 7) == 2


def test_a_need_that_stays_is_not_written_again_and_again() -> None:
    peaks = Peaks().with_need(1000.0, 2, 600.0)
    assert peaks.with_need(1010.0, 2, 600.0) == peaks


def test_changes_of_the_window_count() -> None:
    changes = Changes().with_change(1000.0, 2, 60.0).with_change(1030.0, 4, 60.0)
    assert changes.lowest(1040.0, 60.0, 6) == 2
    assert changes.lowest(1070.0, 60.0, 6) == 4
    assert changes.highest(1040.0, 60.0, 3) == 4
    assert changes.with_change(1100.0, 6, 60.0).entries == ((1100.0, 6),)


def test_steady_is_as_long_as_engines_and_rate_are_alike() -> None:
    load = Load(1000.0, ready=2, arrivals=10.0)
    steady = Steady().with_load(load, 10.0)
    assert not steady.lasts(1000.0 + WINDOW - 1)
    assert steady.with_load(Load(1050.0, ready=2, arrivals=10.0), 11.0).lasts(1000.0 + WINDOW)
    assert not steady.with_load(Load(1050.0, ready=3, arrivals=10.0), 10.0).lasts(1000.0 + WINDOW)
    assert not steady.with_load(Load(1050.0, ready=2, arrivals=10.0), 20.0).lasts(1000.0 + WINDOW)
