"""Forecasts of arrivals: noise is smoothed, bursts are believed, and only what rises twice is a trend."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_operator.scaling.forecast import MOST_GROWTH, Forecast


def fed(rates: list[float], counted: float = 10.0) -> Forecast:
    forecast = Forecast()
    for index, rate in enumerate(rates):
        forecast = forecast.with_rate(1000.0 + 10 * index, rate, counted)
    return forecast


def test_the_first_measurement_is_the_level() -> None:
    assert fed([7.0]) == Forecast(1000.0, 7.0)


def test_a_steady_rate_is_forecast_as_it_is() -> None:
    assert fed([5.0] * 50).ahead(60) == pytest.approx(5.0)


def test_the_noise_of_a_poisson_process_is_smoothed() -> None:
    generator = random.Random(3)
    counts = [sum(generator.random() < 0.1 for _ in range(1000)) / 10 for _ in range(300)]
    levels = [fed(counts[:end]).level for end in range(100, 300, 10)]
    assert max(levels) - min(levels) < 0.6 * (max(counts[100:]) - min(counts[100:]))


def test_a_burst_is_believed_at_once_and_is_no_trend() -> None:
    burst = fed([10.0] * 30 + [25.0])
    assert burst.level == pytest.approx(25.0)
    assert burst.ahead(60) == pytest.approx(25.0)


def test_a_measurement_that_is_no_count_is_only_smoothed() -> None:
    assert fed([10.0] * 30 + [30.0], counted=0.0).level < 20.0


def test_a_ramp_is_followed_ahead() -> None:
    ramp = fed([10.0] * 30 + [10.0 + 4 * step for step in range(1, 8)])
    assert 38.0 + 10.0 < ramp.ahead(60) <= ramp.level * MOST_GROWTH


def test_a_falling_trend_is_not_followed() -> None:
    fall = fed([40.0 - step for step in range(30)])
    assert fall.ahead(600) == fall.level


def test_clusters_are_learnt_as_chance() -> None:
    clustered = fed([4.0, 16.0] * 60)
    assert clustered.dispersion > 3.0
    assert abs(clustered.with_rate(clustered.at + 10, 16.0, 10.0).level - clustered.level) < 16.0 - clustered.level


@pytest.mark.parametrize("passed", [-5.0, 100_000.0])
def test_a_clock_that_jumps_begins_anew(passed: float) -> None:
    forecast = fed([10.0] * 30)
    assert forecast.with_rate(forecast.at + passed, 3.0, 10.0) == Forecast(forecast.at + passed, 3.0)


def test_the_same_time_twice_changes_nothing() -> None:
    forecast = fed([10.0] * 5)
    assert forecast.with_rate(forecast.at, 99.0, 10.0) == forecast


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0, 600))
def test_it_is_never_negative_nor_beyond_the_most_growth(rates: list[float], seconds: float) -> None:
    forecast = fed(rates)
    assert forecast.level >= 0.0
    assert forecast.level <= forecast.ahead(seconds) <= MOST_GROWTH * forecast.level


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_a_step_between_two_looks_is_no_trend(share: float) -> None:
    step = fed([10.0] * 30 + [10.0 + 15 * share, 25.0])
    assert step.ahead(60) == pytest.approx(step.level)
    assert fed([10.0] * 30 + [10.0 + 15 * share, 25.0, 25.0]).ahead(60) < 27.0


def test_a_trend_is_expected_to_last_for_as_long_as_it_has() -> None:
    ramp = [10.0] * 30 + [10.0 + 1.5 * step for step in range(1, 9)]
    early, late = fed(ramp[:-5]), fed(ramp)
    assert early.trend > 0.0
    assert early.ahead(60) == pytest.approx(early.level + early.trend * 20.0)
    assert late.ahead(60) == pytest.approx(late.level + late.trend * 60.0)
