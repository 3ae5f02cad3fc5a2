"""The reference for quantised weights of checkpoints: some outputs at a time become floats and are multiplied."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.linear.activations import Activations
from blade_llm.kernels.linear.packed import PackedLinear
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.spec.quantization.weights import BLOCK_ELEMENTS

PAIRED_BITS = 4
"""Up to so many bits, two integers are kept in a byte."""


class AffineLinear:
    """Integers, two in a byte where they are small enough, with scales and zero points.

    On a CPU weights and sums are fp32; on a GPU the weight is rounded to the type of the activations, once per call.
    """

    __slots__ = (
        "_activations",
        "_bias",
        "_bits",
        "_columns",
        "_group_size",
        "_integers",
        "_order",
        "_rows",
        "_scales",
        "_zeros",
        "nbytes",
    )

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, rows: int | None = None) -> None:
        """``rows``: as in :func:`multiply_in_blocks`."""
        self._rows = rows
        self._bits, self._group_size, self._columns = weight.bits, weight.group_size, weight.columns
        self._integers = _paired(weight.integers) if weight.bits <= PAIRED_BITS else weight.integers.contiguous()
        self._scales, self._zeros, self._order, self._bias = weight.scales, weight.zeros, weight.order, bias
        self._activations = weight.activations
        kept = (self._integers, weight.scales, weight.zeros, weight.order, bias)
        self.nbytes = sum(tensor.nbytes for tensor in kept if tensor is not None)

    def __call__(self, x: Tensor) -> Tensor:
        # No name for the ordered copy: it goes as soon as there is one in fp32.
        outputs = len(self._integers)
        return multiply_in_blocks(
            x if self._order is None else x[:, self._order],
            self._blocks(),
            outputs,
            self._bias,
            self._rows,
            self._activations,
        )

    def _blocks(self) -> Iterator[Tensor]:
        rows = max(1, BLOCK_ELEMENTS // self._columns)
        for first in range(0, len(self._integers), rows):
            some = slice(first, first + rows)
            integers = self._integers[some]
            if self._bits <= PAIRED_BITS:
                integers = torch.stack((integers & 15, integers >> 4), dim=-1).flatten(1)[:, : self._columns]
            zeros = None if self._zeros is None else self._zeros[some]
            block = QuantizedWeight(self._bits, integers, self._scales[some], zeros, self._group_size)
            yield block.dequantize_columns(0, len(integers))


class StackedLinear:
    """Layers with the same inputs, their outputs one after the other."""

    __slots__ = ("_parts", "nbytes")

    def __init__(self, parts: list[PackedLinear]) -> None:
        self._parts = parts
        self.nbytes = sum(part.nbytes for part in parts)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self._parts], dim=1)


def multiply_in_blocks(
    x: Tensor,
    blocks: Iterator[Tensor],
    outputs: int,
    bias: Tensor | None,
    rows: int | None = None,
    activations: Activations | None = None,
) -> Tensor:
    """[tokens, in] times a weight whose ``outputs`` come in ``blocks`` ([some, in] fp32), to [tokens, out] of the same
    type.

    Takes the memory that :func:`blade_llm.spec.quantization.weights.dequantized_bytes` says. ``rows``: always so many
    tokens are multiplied at once, because libraries choose by their number how they sum; None: all. ``activations``:
    how ``x`` is rounded before; None: it is not.
    """
    dtype = x.dtype if x.device.type == "cuda" else torch.float32
    tokens = len(x)
    y = x.new_empty(tokens, outputs)
    if activations is not None:
        x = activations.rounded(x)
    if rows is None:
        rows, wide = max(1, tokens), x.to(dtype)
    else:
        wide = x.new_zeros((tokens + -tokens % rows, x.shape[1]), dtype=dtype)
        wide[:tokens] = x
    del x
    first = 0
    for block in blocks:
        floats = block.to(dtype)
        last = first + len(floats)
        for start in range(0, tokens, rows):
            end = min(start + rows, tokens)
            product = F.linear(wide[start : start + rows], floats)
            if bias is not None:
                product += bias[first:last]
            y[start:end, first:last] = product[: end - start]
            del product
        first = last
        del block, floats  # before the next one is made
    return y


def _paired(integers: Tensor) -> Tensor:
    if integers.shape[1] % 2:
        integers = F.pad(integers, (0, 1))
    return integers[:, 0::2] | integers[:, 1::2] << 4
