"""Evidence under continuous looking: how seldom it says what is not so, and how soon it says what is."""

import math
import random

import pytest

from blade_operator.analysis.evidence import log_higher_mean, log_more_often, log_other_distribution

RUNS = 200
DRAWS = random.Random(11)


def crosses(path: list[float], bound: float) -> bool:
    return max(path) >= math.log(1 / bound)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_equal_error_rates_seldom_look_different(share: float) -> None:
    wrong = 0
    for _ in range(RUNS):
        counts, path = [0, 0], []
        for _ in range(200):
            counts[DRAWS.random() >= share] += 1
            path.append(log_more_often(counts[0], counts[1], share))
        wrong += crosses(path, 0.1)
    assert wrong <= 0.1 * RUNS + 3 * math.sqrt(0.1 * 0.9 * RUNS)


def test_its_expectation_is_one_without_a_difference() -> None:
    """Exactly: over all the ways in which so many errors may fall."""
    share, errors = 0.05, 12
    expected = sum(
        math.comb(errors, new)
        * share**new
        * (1 - share) ** (errors - new)
        * math.exp(log_more_often(new, errors - new, share))
        for new in range(errors + 1)
    )
    assert expected == pytest.approx(1.0)


def test_a_few_errors_of_a_small_share_are_much_evidence() -> None:
    assert log_more_often(5, 0, 0.05) > math.log(1000)
    assert log_more_often(5, 95, 0.05) < 0
    assert log_more_often(0, 10, 0.05) < 0, "fewer errors are none"
    assert log_more_often(3, 3, 0.0) == log_more_often(3, 3, 1.0) == 0.0


def test_equal_latencies_seldom_look_different() -> None:
    wrong = 0
    for _ in range(RUNS):
        count, total, squares, path = 0, 0.0, 0.0, []
        for _ in range(200):
            value = DRAWS.gauss(0.0, 0.3)
            count, total, squares = count + 1, total + value, squares + value * value
            path.append(log_higher_mean(count, total, squares, 0.0))
        wrong += crosses(path, 0.1)
    assert wrong <= 0.1 * RUNS + 3 * math.sqrt(0.1 * 0.9 * RUNS)


def test_a_higher_mean_is_found_and_one_within_the_tolerance_is_not() -> None:
    values = [math.log(1.5) + DRAWS.gauss(0.0, 0.25) for _ in range(60)]
    sums = len(values), sum(values), sum(value * value for value in values)
    assert log_higher_mean(*sums, math.log(1.15)) > math.log(1200)
    assert log_higher_mean(*sums, math.log(1.6)) == 0.0
    assert log_higher_mean(3, 30.0, 300.0, 0.0) == 0.0, "too few"
    assert math.isfinite(log_higher_mean(50, 50.0, 50.0, 0.0)), "they do not differ at all"


def test_a_shifted_distribution_is_found_and_an_equal_one_is_not() -> None:
    old = {"stop": 1700, "length": 300}
    assert log_other_distribution({"stop": 60, "length": 40}, old) > math.log(3600)
    assert log_other_distribution({"stop": 85, "length": 15}, old) < 0
    assert log_other_distribution({"stop": 50, "tool_calls": 50}, old) > math.log(3600)
    assert log_other_distribution({}, old) == log_other_distribution(old, {}) == 0.0
    wrong = 0
    for _ in range(100):
        new_counts, old_counts, path = {"a": 0, "b": 0, "c": 0}, {"a": 0, "b": 0, "c": 0}, []
        for step in range(300):
            which = DRAWS.choice("aab") if DRAWS.random() < 0.9 else "c"
            (new_counts if step % 4 == 0 else old_counts)[which] += 1
            path.append(log_other_distribution(new_counts, old_counts))
        wrong += crosses(path, 0.1)
    assert wrong <= 10 + 3 * 3
