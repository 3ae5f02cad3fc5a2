"""What the operator multiplies with: an adapter's matrices for one layer, and which tokens use which adapter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blade_llm.kernels.lora.device import DeviceTable


@dataclass(frozen=True, slots=True)
class Slice:
    """Outputs that one B makes."""

    first_output: int
    first_rank: int
    """Where its A begins among the rows of :attr:`Factors.a`."""
    b: Tensor
    """[rank, outputs], contiguous: transposed, and multiplied by the adapter's scale."""


@dataclass(frozen=True, slots=True)
class Factors:
    """One adapter's matrices for one linear layer, which may be several of the checkpoint's under each other."""

    a: Tensor
    """[ranks of all slices, inputs], contiguous."""
    slices: tuple[Slice, ...]
    outputs: int
    """Of the whole layer."""

    @property
    def nbytes(self) -> int:
        """Of all matrices."""
        return self.a.nbytes + sum(each.b.nbytes for each in self.slices)

    def to(self, device: torch.device) -> Factors:
        """A copy on ``device``; from pinned memory without waiting."""
        slices = tuple(Slice(s.first_output, s.first_rank, s.b.to(device, non_blocking=True)) for s in self.slices)
        return Factors(self.a.to(device, non_blocking=True), slices, self.outputs)


class FactorTable:
    """One layer's matrices by adapter slot."""

    __slots__ = ("device", "factors", "native", "place")

    def __init__(self, place: str, slots: int) -> None:
        """``slots``: that there are, slot 0 (no adapter) included."""
        self.place = place
        self.factors: list[Factors | None] = [None] * slots
        self.native: Any = None
        """The same for the kernel in C++, where that is in use."""
        self.device: DeviceTable | None = None
        """What takes its place for kernels in Triton."""

    def put(self, slot: int, factors: Factors | None) -> None:
        """Whatever is computed from now on for ``slot`` uses ``factors``."""
        self.factors[slot] = factors
        if self.native is not None:
            self.native.put(slot, factors)


class AdapterBatch:
    """The tokens of a step that use adapters, those of one adapter one after another."""

    __slots__ = ("address", "kept", "rows", "slots", "starts")

    def __init__(self, rows: Tensor, slots: Sequence[int], starts: Sequence[int]) -> None:
        """``rows``: [tokens] int64 on the device; ``slots``: adapter of each segment; ``starts``: where each begins
        among ``rows``, and the end of the last."""
        self.rows = rows
        self.slots = list(slots)
        self.starts = list(starts)
        self.address = 0
        self.kept: Any = None

    def parts(self, tokens: int, size: int) -> list[AdapterBatch | None]:
        """The same for each ``size`` of a step's tokens, whose rows count from there; None: none of them is in it."""
        if tokens <= size:
            return [self]
        rows, slots = self.rows.numpy(), np.repeat(np.array(self.slots), np.diff(self.starts))
        adapters = np.zeros(tokens, dtype=np.int64)
        adapters[rows] = slots
        found: list[AdapterBatch | None] = []
        for first in range(0, tokens, size):
            own, segments, starts = AdapterBatch.sort(adapters[first : first + size])
            found.append(AdapterBatch(torch.from_numpy(own), segments, starts) if segments else None)
        return found

    @staticmethod
    def sort(adapters: np.ndarray) -> tuple[np.ndarray, list[int], list[int]]:
        """``rows``, ``slots`` and ``starts`` of tokens whose adapter slots are ``adapters`` ([tokens], 0: none)."""
        rows = np.argsort(adapters, kind="stable")
        sorted_slots = adapters[rows]
        first = int(np.searchsorted(sorted_slots, 1))
        rows, sorted_slots = rows[first:], sorted_slots[first:]
        begins = np.flatnonzero(np.diff(sorted_slots, prepend=0))
        return rows, sorted_slots[begins].tolist(), [*begins.tolist(), len(rows)]
