"""Parts of linear layers: some of their outputs, or some of their inputs, of what a tensor map says already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from blade_llm.spec.tensors import LinearMap, LinearPart


@dataclass(frozen=True, slots=True)
class ColumnParallel:
    """The layer's outputs are divided: the columns of its weight in Megatron's words, whose weights are [in, out]."""

    outputs: tuple[range, ...]
    """Those of one rank, ascending."""

    def apply(self, linear: LinearMap) -> LinearMap:
        """The rank's part of the layer."""
        parts, first = [], 0
        for part in linear.parts:
            some = [_overlap(outputs, first, part.wanted) for outputs in self.outputs]
            rows = [each for each in some if each]
            if rows:
                parts.append(replace(part, rows=_rows_of(part, rows)))
            first += part.wanted
        return replace(linear, parts=tuple(parts))


@dataclass(frozen=True, slots=True)
class RowParallel:
    """The layer's inputs are divided, and the ranks' results are added: the bias belongs to the first rank alone."""

    inputs: range
    """Those of one rank."""
    first: bool
    """Whether this is the first rank."""

    def apply(self, linear: LinearMap) -> LinearMap:
        """The rank's part of the layer."""
        assert all(part.columns is None and not part.unit_rows for part in linear.parts)
        parts = tuple(replace(part, columns=self.inputs) for part in linear.parts)
        return LinearMap(parts, linear.bias and self.first)


@dataclass(frozen=True, slots=True)
class Replicated:
    """Every rank has the whole layer."""

    def apply(self, linear: LinearMap) -> LinearMap:
        """The layer."""
        return linear


Division = ColumnParallel | RowParallel | Replicated
"""How ranks divide a linear layer."""


def _overlap(outputs: range, first: int, count: int) -> range:
    """Which of the ``count`` outputs from ``first`` on are among ``outputs``, counted from ``first``."""
    return range(max(outputs.start - first, 0), min(outputs.stop - first, count))


def _rows_of(part: LinearPart, wanted: Sequence[range]) -> Sequence[int]:
    """The checkpoint's rows of some of the part's outputs."""
    if part.rows is None:
        return wanted[0] if len(wanted) == 1 else _joined(tuple(wanted))
    if len(wanted) == 1:
        return part.rows[wanted[0].start : wanted[0].stop]
    return tuple(part.rows[output] for outputs in wanted for output in outputs)


@lru_cache(maxsize=64)  # experts by the hundred share them
def _joined(ranges: tuple[range, ...]) -> tuple[int, ...]:
    return tuple(row for each in ranges for row in each)
