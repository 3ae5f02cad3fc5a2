"""An embedding table that stays quantised: of a step's tokens alone the rows become floats."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.quantized import QuantizedWeight

_HALF: Final = 4
"""Bits of half a byte."""


class QuantizedTable:
    """Rows of a :class:`QuantizedWeight` or :class:`Float8Weight`; integers of up to 4 bits lie two in a byte."""

    def __init__(self, weight: QuantizedWeight | Float8Weight, dtype: torch.dtype) -> None:
        """``dtype``: of the rows that are looked up."""
        self.dtype = dtype
        self._halves = isinstance(weight, QuantizedWeight) and weight.bits <= _HALF and weight.columns % 2 == 0
        self._weight = weight
        if isinstance(weight, QuantizedWeight):
            stored = weight.integers[:, 0::2] | weight.integers[:, 1::2] << _HALF if self._halves else weight.integers
            # No view of the integers, which would keep all of them beside the halves.
            none = weight.integers.new_empty(0, weight.columns)
            self._weight = replace(weight, integers=none, scales=weight.scales[:0], zeros=None)
            tensors = [stored, weight.scales, *(() if weight.zeros is None else (weight.zeros,))]
        else:
            # As bytes: not every torch looks up rows of 8-bit floats.
            self._weight = replace(weight, values=weight.values[:0], scales=weight.scales[:0])
            tensors = [weight.values.view(torch.uint8), weight.scales]
        self._tensors: list[Tensor] = [tensor.contiguous() for tensor in tensors]

    @property
    def device(self) -> torch.device:
        return self._tensors[0].device

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def rows(self, ids: Tensor) -> Tensor:
        """[ids] int to [ids, hidden] of :attr:`dtype`: the stored numbers, rounded once."""
        weight = self._weight
        if isinstance(weight, Float8Weight):
            values, scales = self._tensors
            rows, columns = weight.block
            chosen = scales.float().index_select(0, ids // rows)
            if columns < weight.inputs:
                chosen = chosen.repeat_interleave(columns, dim=1)[:, : weight.inputs]
            found = values.index_select(0, ids).view(torch.float8_e4m3fn).float().mul_(chosen)
            return found.to(self.dtype)
        stored, scales, *zeros = (tensor.index_select(0, ids) for tensor in self._tensors)
        integers = torch.stack((stored & 15, stored >> _HALF), dim=2).flatten(1) if self._halves else stored
        few = replace(weight, integers=integers, scales=scales, zeros=zeros[0] if zeros else None)
        return few.dequantize().to(self.dtype)
