"""Blocks of a checkpoint's tensors: what is read of a file where not all of a tensor is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Slice:
    """A block of a tensor, as the checkpoint has it. None: all; ranges are contiguous."""

    index: int | None = None
    """Which of the matrices that lie one after the other, along a dimension before the others."""
    rows: range | None = None
    columns: range | None = None


@lru_cache(maxsize=64)  # experts by the hundred have the same rows
def contiguous_runs(rows: Sequence[int]) -> tuple[tuple[range, ...], tuple[int, ...] | None]:
    """The contiguous runs that ``rows`` are made of, ascending, and where each row is among all rows of the runs: None
    where that is their order already. ``rows`` must be hashable."""
    if isinstance(rows, range) and rows.step == 1:
        return (rows,), None
    ascending = sorted(set(rows))
    runs: list[range] = []
    for row in ascending:
        if runs and runs[-1].stop == row:
            runs[-1] = range(runs[-1].start, row + 1)
        else:
            runs.append(range(row, row + 1))
    if len(ascending) == len(rows) and all(one == other for one, other in zip(ascending, rows, strict=True)):
        return tuple(runs), None
    places = {row: place for place, row in enumerate(ascending)}
    return tuple(runs), tuple(places[row] for row in rows)
