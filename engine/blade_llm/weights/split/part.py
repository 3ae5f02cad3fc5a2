"""The part of one tensor that a rank's folder holds, and where in it a block of the whole tensor lies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from blade_llm.spec.slices import Slice

Run = tuple[int, int]
"""Rows or columns of the whole tensor: the first, and the one after the last."""


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some rows and columns of a tensor, as the checkpoint has it, in ascending order; all where None is given. Of
    matrices that lie one after the other rows are the matrices, unless it is ``indexed``."""

    rows: tuple[Run, ...] | None = None
    columns: tuple[Run, ...] | None = None
    indexed: bool = False
    """A dimension of matrices that lie one after the other, all of them, comes before rows and columns."""

    @property
    def whole(self) -> bool:
        """Whether nothing of the tensor is left out."""
        return self.rows is None and self.columns is None

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the part of a tensor of ``shape``. Raises ``ValueError`` for one that it cannot be of."""
        first = int(self.indexed)
        own = list(shape)
        for axis, runs in ((first, self.rows), (first + 1, self.columns)):
            if runs is None:
                continue
            if axis >= len(shape) or not _ascending(runs, shape[axis]):
                raise ValueError(f"{runs} of dimension {axis} of {list(shape)}")
            own[axis] = _count(runs)
        return tuple(own)

    def find(self, block: Slice | None) -> Slice | None:
        """Where in the part ``block`` of the whole tensor lies; None for all of the part, as for a whole tensor.

        Raises ``ValueError`` for a block that is not in the part, or not in one piece.
        """
        if self.whole:
            return block
        block = block or Slice()
        if block.index is not None and not self.indexed:
            matrix = _find(self.rows, range(block.index, block.index + 1))
            if self.columns is not None:
                raise ValueError("columns of matrices")
            return Slice(0 if matrix is None else matrix.start, block.rows, block.columns)
        rows, columns = _find(self.rows, block.rows), _find(self.columns, block.columns)
        if block.index is None and rows is None and columns is None:
            return None
        return Slice(block.index, rows, columns)


def merged(runs: Iterable[Run], size: int) -> tuple[Run, ...] | None:
    """``runs`` in ascending order, each as long as it can be; None where they are all ``size`` rows or columns."""
    found: list[Run] = []
    for start, stop in sorted(runs):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        elif start < stop:
            found.append((start, stop))
    return None if found == [(0, size)] else tuple(found)


def _find(runs: Sequence[Run] | None, wanted: range | None) -> range | None:
    if runs is None:
        return wanted
    if wanted is None:
        raise ValueError("all of it is not there")
    if not wanted:
        return range(0)
    before = 0
    for start, stop in runs:
        if start <= wanted.start and wanted.stop <= stop:
            place = range(before + wanted.start - start, before + wanted.stop - start)
            return None if len(place) == _count(runs) else place
        before += stop - start
    raise ValueError(f"{wanted.start} to {wanted.stop} are not there")


def _count(runs: Iterable[Run]) -> int:
    return sum(stop - start for start, stop in runs)


def _ascending(runs: Sequence[Run], size: int) -> bool:
    """Whether ``runs`` are disjoint, ascending and among ``size``."""
    ends = [end for run in runs for end in run]
    return bool(ends) and ends == sorted(set(ends)) and ends[0] >= 0 and ends[-1] <= size
