"""Splits of requests by weight: exact in each block, and by chance within it."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_router.policies.weighted_split import LONGEST_BLOCK, WeightedSplit

SPLITS = ({"a": 0.6, "b": 0.4}, {"a": 0.95, "b": 0.05}, {"a": 0.5, "b": 0.3, "c": 0.2}, {"a": 1.0, "b": 0.0})


@pytest.mark.parametrize("shares", SPLITS, ids=str)
def test_each_hundred_requests_are_split_exactly(shares: dict[str, float]) -> None:
    split = WeightedSplit()
    for _ in range(20):
        found = Counter(split.choose(shares, b"") for _ in range(100))
        assert found == {part: round(100 * share) for part, share in shares.items() if share}


def test_questions_that_come_in_turn_are_shared_by_all_parts() -> None:
    """As by clients that ask five questions one after the other, of which two in five requests are to go to ``b``."""
    split, asked = WeightedSplit(), Counter[int]()
    for number in range(5000):
        if split.choose({"a": 0.6, "b": 0.4}, b"") == "b":
            asked[number % 5] += 1
    assert asked.total() == 2000
    assert all(330 < count < 470 for count in asked.values()), asked


def test_a_copy_draws_the_same_and_leaves_no_trace() -> None:
    split, shares = WeightedSplit(), {"a": 0.7, "b": 0.3}
    for _ in range(13):
        split.choose(shares, b"")
    copy = split.copy()
    ahead = [copy.choose(shares, b"") for _ in range(50)]
    assert [split.choose(shares, b"") for _ in range(50)] == ahead


_WEIGHTS = st.dictionaries(st.sampled_from("abcd"), st.floats(0.0, 10.0), min_size=1).filter(
    lambda weights: sum(weights.values()) > 0.01
)


@given(st.lists(st.tuples(_WEIGHTS, st.integers(1, 150)), min_size=1, max_size=6))
def test_shares_that_change_or_are_no_whole_numbers_are_kept_to(changes: list[tuple[dict[str, float], int]]) -> None:
    split = WeightedSplit()
    for weights, count in changes:
        shares = {part: weight / sum(weights.values()) for part, weight in weights.items()}
        assert {split.choose(shares, b"") for _ in range(count)} <= shares.keys()
    found = Counter(split.choose(shares, b"") for _ in range(10 * LONGEST_BLOCK))
    for part, share in shares.items():
        assert abs(found[part] - 10 * LONGEST_BLOCK * share) <= 1.5 * LONGEST_BLOCK
