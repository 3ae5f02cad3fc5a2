"""What is left to the long tests leaves each value, and each pair of values, in the others."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest
from engine_support.pairwise import in_turn, pairwise

AXES = (["a", "b", "c", "d"], [1, 2, 3], [True, False], [None, 0.5])


def fast(parameters: list[Any]) -> list[tuple[Any, ...]]:
    return [each.values for each in parameters if not each.marks]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_each_pair_of_values_is_in_a_fast_test(count: int) -> None:
    axes = AXES[:count]
    made = pairwise(*axes)
    assert [each.values for each in made] == list(product(*axes))
    for some, others in combinations(range(count), 2):
        held = {(values[some], values[others]) for values in fast(made)}
        assert held == set(product(axes[some], axes[others]))
    assert {tuple(axis[0] for axis in axes), tuple(axis[-1] for axis in axes)} <= set(fast(made))


def test_there_are_few_of_them() -> None:
    assert len(pairwise(*AXES)) == 48
    assert len(fast(pairwise(*AXES))) <= 15
    assert pairwise(["a"], []) == []


def test_those_left_out_are_soak_tests() -> None:
    marks = {mark.name for each in pairwise(*AXES) for mark in each.marks}
    assert marks == {"soak"}


def test_few_values_take_turns() -> None:
    made = in_turn("abcde", [1, 2])
    assert [each.values for each in made] == list(product("abcde", [1, 2]))
    assert fast(made) == [("a", 1), ("b", 2), ("c", 1), ("d", 2), ("e", 1)]
