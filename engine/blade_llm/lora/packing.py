"""An adapter in one piece of host memory, as it is to lie in device memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.kernels.lora import Factors
from blade_llm.spec.adapter_layout import ENTRY_HEAD, ENTRY_PART, UNIT, SlotLayout, padded


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """All matrices of an adapter, with their real ranks."""

    weights: Tensor
    """[elements]"""
    entries: Tensor
    """[places, numbers] int32: where the matrices of each layer are."""

    @property
    def nbytes(self) -> int:
        """Of both."""
        return self.weights.nbytes + self.entries.nbytes


def pack(layout: SlotLayout, factors: Mapping[str, Factors], dtype: torch.dtype, *, pinned: bool) -> PackedAdapter:
    """Pack ``factors``, by place. ``pinned``: into memory that a GPU copies from while the host goes on.

    Raises ValueError for a rank above the layout's: it would not fit.
    """
    sizes = {place: _elements(each) for place, each in factors.items()}
    weights = torch.zeros(sum(sizes.values()), dtype=dtype, pin_memory=pinned)
    entries = torch.zeros(len(layout.places), layout.entry, dtype=torch.int32, pin_memory=pinned)
    begin = 0
    for name, each in factors.items():
        place, entry = layout.places[name], [0] * layout.entry
        if max(len(s.b) for s in each.slices) > layout.max_rank:
            raise ValueError(f"{name}: a rank is above {layout.max_rank}")
        entry[0], entry[1] = begin // UNIT, len(each.a)
        begin = _put(weights, begin, each.a)
        for part in each.slices:
            first = ENTRY_HEAD + ENTRY_PART * place.first_outputs.index(part.first_output)
            entry[first : first + ENTRY_PART] = len(part.b), part.first_rank, begin // UNIT
            begin = _put(weights, begin, part.b)
        entries[place.index] = torch.tensor(entry, dtype=torch.int32)
    return PackedAdapter(weights, entries)


def _elements(factors: Factors) -> int:
    matrices = (factors.a, *(each.b for each in factors.slices))
    return sum(len(matrix) * padded(matrix.shape[1]) for matrix in matrices)


def _put(weights: Tensor, begin: int, matrix: Tensor) -> int:
    """Copy ``matrix`` with padded rows to ``begin``; where it ends."""
    rows, columns = matrix.shape
    end = begin + rows * padded(columns)
    weights[begin:end].view(rows, padded(columns))[:, :columns] = matrix
    return end
