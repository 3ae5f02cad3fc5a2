"""A covering design: few cells, in which every combination of levels of any so many factors appears.

Greedy, from a seed, so it is the same each time. All triples of the factors need about 130 cells of 122,880.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from benchmarks.routing.cell import FACTORS, Cell

TRIES = 24
"""Rows of which the best one is taken."""
Row = tuple[int, ...]
"""The level of each factor."""
Tuple = tuple[tuple[int, int], ...]
"""Levels of some factors: pairs of a factor's position and a level."""


def covering(strength: int, seed: int = 1) -> list[Cell]:
    """Cells that cover all combinations of ``strength`` factors."""
    rng = random.Random(seed)
    sizes = [len(levels) for levels in FACTORS.values()]
    groups = list(itertools.combinations(range(len(sizes)), strength))
    left = {
        tuple(zip(group, levels, strict=True))
        for group in groups
        for levels in itertools.product(*(range(sizes[at]) for at in group))
    }
    rows: list[Row] = []
    while left:
        start = min(left)  # the same one each time, and nothing is left over
        best, gained = max(
            ((row, _covered(row, groups) & left) for row in _rows(rng, start, sizes, left, groups)),
            key=lambda pair: len(pair[1]),
        )
        rows.append(best)
        left -= gained
    return [cell_of(row) for row in rows]


def cell_of(row: Sequence[int]) -> Cell:
    return Cell(*(levels[at] for levels, at in zip(FACTORS.values(), row, strict=True)))


def grid(part: int, parts: int) -> Iterator[Cell]:
    """Every ``parts``-th cell of the full grid, from the ``part``-th on."""
    levels = (range(len(levels)) for levels in FACTORS.values())
    for row in itertools.islice(itertools.product(*levels), part, None, parts):
        yield cell_of(row)


def _covered(row: Row, groups: Sequence[tuple[int, ...]]) -> set[Tuple]:
    return {tuple((at, row[at]) for at in group) for group in groups}


def _rows(
    rng: random.Random, start: Tuple, sizes: Sequence[int], left: set[Tuple], groups: Sequence[tuple[int, ...]]
) -> Iterator[Row]:
    """Rows that contain ``start``, the rest filled with levels that are still missing."""
    missing = sorted(left)
    for _ in range(TRIES):
        row: dict[int, int] = dict(start)
        for other in rng.sample(missing, min(len(missing), 40)):
            if all(row.get(at, level) == level for at, level in other):
                row.update(other)
        yield tuple(row.get(at, rng.randrange(size)) for at, size in enumerate(sizes))
