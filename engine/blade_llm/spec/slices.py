"""Tensors that a checkpoint must have, and blocks of them: what is read of a file where not all is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

WORD_BITS: Final = 32
"""Bits of the integers that hold packed ones."""


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


@dataclass(frozen=True, slots=True)
class Axis:
    """What lies along a dimension of a stored tensor: for so many outputs, or inputs, so many elements."""

    inputs: bool
    """Whether these are inputs of the weight, not outputs."""
    per: int = 1
    """Outputs or inputs, of which none is divided."""
    count: int = 1
    """Elements that stand for them."""

    def first(self, run: range) -> int:
        """The first output or input that the elements for ``run`` stand for."""
        return run.start // self.per * self.per

    def span(self, run: range, size: int) -> range:
        """The elements, of ``size``, for the outputs or inputs of ``run``."""
        return range(run.start // self.per * self.count, min(size, -(-run.stop // self.per) * self.count))


def words_of(bits: int, *, inputs: bool) -> Axis:
    """Words of 32 bits that hold integers of ``bits`` without gaps; where some of these cross the border of two words,
    as many words as hold 32 integers are one."""
    return Axis(inputs, WORD_BITS // bits) if WORD_BITS % bits == 0 else Axis(inputs, WORD_BITS, bits)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that a checkpoint must have."""

    name: str
    shape: tuple[int, ...]
    types: tuple[str, ...] = ()
    """Safetensors' names of the types that it may have; none: those of plain weights."""
    older: tuple[int, ...] | None = None
    """Another shape that it may have: that of an earlier version of the format."""
    axes: tuple[Axis | None, ...] = ()
    """Of its dimensions; None, or none: all of it is needed for each part of the weight."""

    def block(self, outputs: range, inputs: range) -> Slice | None:
        """What of it stands for some outputs and inputs of the weight; None: all."""
        runs: list[range | None] = [None, None]
        for place, axis in enumerate(self.axes):
            if axis is not None:
                size = self.shape[place]
                span = axis.span(inputs if axis.inputs else outputs, size)
                runs[place] = None if span == range(size) else span
        return None if runs == [None, None] else Slice(None, *runs)
