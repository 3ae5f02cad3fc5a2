"""The number of draft tokens: against all possibilities, and in the cases that have to come out one way."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_llm.decoding.acceptance import AcceptanceRate
from blade_llm.decoding.controller import draft_counts
from blade_llm.decoding.step_seconds import StepSeconds

FLAT = StepSeconds({1: 1.0, 64: 1.0})
LINEAR = StepSeconds({1: 1.0, 64: 64.0})


def counts(rates: list[float], gamma: int, seconds: StepSeconds, **options: int) -> list[int]:
    matrix = np.repeat(np.array(rates)[:, None], gamma, 1)
    rooms = np.full(len(rates), gamma)
    return draft_counts(matrix, rooms, seconds, **{"most_tokens": 1000, **options}).tolist()


def test_tokens_that_cost_nothing_are_all_taken() -> None:
    assert counts([0.3, 0.9], 4, FLAT) == [4, 4]


def test_tokens_that_cost_as_much_as_a_step_are_not_taken() -> None:
    assert counts([0.9, 0.9], 4, LINEAR) == [0, 0]


def test_a_jump_of_the_cost_is_passed_where_enough_lies_behind_it() -> None:
    """One more token costs 60 %, and seven more cost no more than that."""
    tiles = StepSeconds({1: 1.0, 2: 1.6, 8: 1.6})
    assert counts([0.9], 7, tiles) == [7]
    assert counts([0.3], 7, tiles) == [0]


def test_the_likeliest_tokens_are_taken_first() -> None:
    assert counts([0.9, 0.2], 4, FLAT, most_tokens=3) == [3, 0]


def test_rooms_are_kept() -> None:
    matrix = np.full((2, 4), 0.9)
    assert draft_counts(matrix, np.array([1, 0]), FLAT, most_tokens=10).tolist() == [1, 0]


def test_a_draft_model_that_costs_too_much_is_not_used() -> None:
    cheap = StepSeconds({1: 1.0, 64: 1.0}, {1: 0.05, 64: 0.05})
    dear = StepSeconds({1: 1.0, 64: 1.0}, {1: 1.0, 64: 1.0})
    assert counts([0.8], 4, cheap) == [4]
    assert counts([0.8], 4, dear) == [0]


def test_attention_to_long_contexts_makes_drafts_cheaper() -> None:
    seconds = StepSeconds({1: 1.0, 2: 1.5, 5: 3.0})
    assert counts([0.4], 4, seconds) == [0]
    for _ in range(50):
        seconds.observe(1, 1, 0, 6.0)
    assert counts([0.4], 4, seconds)[0] > 0


@settings(max_examples=100, deadline=None)
@given(
    rates=st.lists(st.floats(0.05, 0.95), min_size=1, max_size=3),
    gamma=st.integers(1, 3),
    costs=st.lists(st.floats(0.0, 0.8), min_size=12, max_size=12),
    draft=st.floats(0.0, 0.4),
)
def test_no_other_choice_has_a_better_rate(rates: list[float], gamma: int, costs: list[float], draft: float) -> None:
    curve = dict(enumerate(1.0 + np.cumsum(costs), 1))
    seconds = StepSeconds(curve, {1: draft, 8: draft})

    def rate(chosen: tuple[int, ...]) -> float:
        tokens = sum(sum(p**k for k in range(count + 1)) for p, count in zip(rates, chosen, strict=True))
        spent = curve[len(rates) + sum(chosen)] + max(chosen) * draft
        return tokens / spent

    chosen = tuple(counts(rates, gamma, seconds))
    best = max(map(rate, itertools.product(range(gamma + 1), repeat=len(rates))))
    assert rate(chosen) == pytest.approx(best)


def test_the_bound_of_a_rate_comes_down_to_its_mean() -> None:
    rate = AcceptanceRate()
    assert rate.upper(100.0) > rate.mean
    for _ in range(2000):
        rate.observe(0, True)
    assert rate.mean < 0.01
    assert rate.upper(2000.0) < 0.1
    for _ in range(2000):
        rate.observe(3, False)
    assert rate.mean > 0.9, "a change is noticed"


def test_steps_of_other_sizes_are_between_and_beyond_the_measured_ones() -> None:
    seconds = StepSeconds({1: 1.0, 3: 2.0, 4: 1.5})
    assert seconds.target(1, [2, 4, 8]).tolist() == [1.5, 2.0, 4.0]


def test_drafts_that_a_step_has_to_wait_for_are_worth_less_where_steps_overlap() -> None:
    """On a GPU the next step is launched before the last one is delivered, but for those with drafts."""
    waiting, overlapping = (StepSeconds({1: 1.0, 4: 1.1}, plain=plain) for plain in (None, 0.5))
    assert counts([0.7], 3, waiting) == [3]
    assert counts([0.2], 3, waiting) == [2]
    assert counts([0.2], 3, overlapping) == [0]
    assert counts([0.7], 3, overlapping) == [3]
    for _ in range(60):
        overlapping.observe(4, 1, 3, 1.1, host=0.9)
    assert overlapping.target(1, [4])[0] == pytest.approx(2.0, rel=0.05)
    assert counts([0.7], 3, overlapping) == [0]


def test_the_host_s_time_counts_for_what_drafts_add_to_it() -> None:
    seconds = StepSeconds({1: 1.0, 4: 1.0})
    seconds.observe(4, 1, 3, 1.0, host=0.4)
    assert seconds.target_of(4) == seconds.plain(1) == 1.0, "nothing is known of steps without drafts"
    seconds.observe(1, 1, 0, 1.0, host=0.1)
    assert seconds.target_of(4) == pytest.approx(1.3)
    assert seconds.plain(1) == 1.0


def test_what_was_measured_wrong_at_the_start_is_learned() -> None:
    """Something disturbed the measurement of steps with drafts: tried once, they are known better."""
    seconds = StepSeconds({1: 1.0, 2: 2.6, 4: 3.0})
    assert counts([0.7], 3, seconds) == [0]
    for _ in range(40):
        seconds.observe(1, 1, 0, 1.0)
        seconds.observe(4, 1, 3, 1.1)
    assert seconds.plain(1) == pytest.approx(1.0)
    assert seconds.target_of(4) == pytest.approx(1.1, rel=0.05)
    assert counts([0.7], 3, seconds)[0] > 0
    for _ in range(40):
        seconds.observe(1, 1, 0, 9.0)
    assert seconds.target_of(4) == pytest.approx(9.1, rel=0.1), "a longer context is longer for both"
    assert seconds.target_of(1) > 0.0
