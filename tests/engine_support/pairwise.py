"""Choices among the product of several parameters, whose other combinations are left to ``make soak``. Pairwise: the
chosen ones hold every pair of values of any two parameters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest

ParameterSet = type(pytest.param())
Combination = tuple[int, ...]
"""The place of each parameter's value among its values."""


def pairwise(*axes: Sequence[Any]) -> list[Any]:
    """What ``parametrize`` takes for the product of ``axes``: in its order, those that are not chosen marked ``soak``.

    Chosen are the first values and the last values of all, and then, one by one, what holds most pairs that none has
    held so far (the greedy rule of Cohen et al., "The AETG System", IEEE TSE 1997)."""
    chosen = _cover([len(axis) for axis in axes])
    found = []
    for places in product(*(range(len(axis)) for axis in axes)):
        values = [axis[place] for axis, place in zip(axes, places, strict=True)]
        found.append(_combined(values, [] if places in chosen else [pytest.mark.soak]))
    return found


def in_turn(many: Sequence[Any], few: Sequence[Any]) -> list[Any]:
    """What ``parametrize`` takes for the product of two: each of ``many`` with one of ``few``, which take turns; the
    others are marked ``soak``."""
    return [
        _combined([one, other], [] if place == number % len(few) else [pytest.mark.soak])
        for number, one in enumerate(many)
        for place, other in enumerate(few)
    ]


def _combined(values: Sequence[Any], marks: list[Any]) -> Any:
    """Values that are ``pytest.param`` keep their marks."""
    sets = [each if isinstance(each, ParameterSet) else pytest.param(each) for each in values]
    of_values = [mark for each in sets for mark in each.marks]
    return pytest.param(*(value for each in sets for value in each.values), marks=[*marks, *of_values])


def _pairs(places: Combination) -> set[tuple[tuple[int, int], ...]]:
    return set(combinations(enumerate(places), 2))


def _cover(sizes: list[int]) -> set[Combination]:
    if 0 in sizes:
        return set()
    left = {places: _pairs(places) for places in product(*map(range, sizes))}
    chosen = [tuple(0 for _ in sizes), tuple(size - 1 for size in sizes)]
    seen = set().union(*map(_pairs, chosen))
    while True:
        left = {places: pairs - seen for places, pairs in left.items() if not pairs <= seen}
        if not left:
            return set(chosen)
        best = max(left, key=lambda places: len(left[places]))
        chosen.append(best)
        seen |= left[best]
