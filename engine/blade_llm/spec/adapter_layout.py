"""Where an adapter's matrices lie in a buffer of device memory: one of any rank up to the largest, for all layers or
some, is one piece of memory and one small table, so that it is copied there in two copies. Free of torch, for
``blade_llm_check``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from blade_llm.spec.tensors import LinearMap

UNIT: Final = 16
"""Elements: matrices begin at multiples of it, and so do their rows, so that a load takes 16 bytes and more at once.
Places in memory are counted in units."""
ENTRY_HEAD: Final = 2
"""Numbers of a layer's entry before those of its parts: where A begins (in units), and how many rows it has."""
ENTRY_PART: Final = 3
"""Numbers for each part: its rank, its first row of A, and where its B begins (in units). Rank 0: the adapter has
nothing there."""


@dataclass(frozen=True, slots=True)
class Place:
    """One layer of the model that takes adapters."""

    index: int
    inputs: int
    outputs: tuple[int, ...]
    """Of each part: queries, keys and values, say."""

    @property
    def first_outputs(self) -> tuple[int, ...]:
        """Where each part begins among the layer's outputs."""
        return tuple(sum(self.outputs[:part]) for part in range(len(self.outputs)))

    @property
    def step(self) -> int:
        """What divides all numbers of outputs, at most :data:`UNIT`: kernels count outputs in such steps."""
        return math.gcd(UNIT, *self.outputs)


class SlotLayout:
    """The layout of all buffers of one model."""

    def __init__(self, linears: Mapping[str, LinearMap], max_rank: int) -> None:
        """``linears``: the layers that take adapters, by place."""
        self.max_rank = max_rank
        self.places = {
            place: Place(index, linear.parts[0].wanted_inputs, tuple(part.wanted for part in linear.parts))
            for index, (place, linear) in enumerate(linears.items())
        }
        self.entry = ENTRY_HEAD + ENTRY_PART * max((len(place.outputs) for place in self.places.values()), default=0)
        """Numbers that say where a layer's matrices are."""
        self.elements = sum(
            max_rank * (len(place.outputs) * padded(place.inputs) + sum(map(padded, place.outputs)))
            for place in self.places.values()
        )
        """Of the matrices of an adapter of the largest rank for all layers."""

    @property
    def entries_bytes(self) -> int:
        """Bytes of the table of one buffer."""
        return len(self.places) * self.entry * 4

    def buffer_bytes(self, itemsize: int) -> int:
        """Bytes of one adapter's buffer and its table; ``itemsize``: of an element."""
        return self.elements * itemsize + self.entries_bytes


def buffers_of(max_loras: int) -> int:
    """Buffers for ``max_loras`` adapters: one more, so that the next adapter is copied while steps that were launched
    before still read the one that it replaces."""
    return max_loras + 1


def padded(length: int) -> int:
    """Elements of a row of so many numbers."""
    return -(-length // UNIT) * UNIT
