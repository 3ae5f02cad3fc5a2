"""Tensors that a checkpoint has in place of a weight: names, shapes, types, and what of each stands for some of the
weight's outputs and inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from blade_llm.spec.slices import Slice

WORD_BITS: Final = 32
"""Bits of the integers that hold packed ones."""


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
