"""Quantised weights in 32-bit words, as kernels load them: a word has weights of one output only, and each of its
pieces belongs to another *slice* of inputs.

A *unit* of inputs is what a slice's width of words holds: 8 slices of 4-bit weights, 4 of 8-bit ones. The words of a
unit lie together for all outputs, so that a program's loads are one dense stretch; unpacking a slice is a shift, a mask
and an *or*, for two slices at once. Slice ``2p`` is piece ``p`` of the lower half of a word, slice ``2p + 1`` that of
the upper half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.quantized import QuantizedWeight

SLICES = (32, 16)
"""Inputs of a slice: a product on tensor cores takes 16 at least, and words of 32 fill a line of the cache."""
PAIRED_BITS = 4
_WORD = 32
_MOST_PAIRED_ZERO = 127
"""Zero points up to so many are exact beside 4-bit weights in bf16."""
_NAN = 0x7F
"""Of e4m3, without its sign."""


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """A quantised weight, packed. Padding has zeros, and meets no input."""

    words: Tensor
    """[units, out, slice] int32."""
    scales: Tensor
    """[groups, rows of scales] of the type they are stored in."""
    zeros: Tensor | None
    """[groups, out] uint8; None: ``middle`` everywhere."""
    order: Tensor | None
    """[in] int64: the input of each column (act-order), of which some may be there to fill up groups; None: their own
    order."""
    kind: Literal["integers", "e4m3"]
    width: int
    """Bits of a weight, 4 or 8."""
    middle: int
    outputs: int
    inputs: int
    group_size: int
    """Inputs that share a scale: a multiple of ``slice``, or all of them."""
    sharing: int
    """Outputs that share a scale."""

    @property
    def slice(self) -> int:
        """Inputs of a slice."""
        return self.words.shape[2]

    @property
    def units(self) -> int:
        """Units of inputs, the last of which may be padded."""
        return self.words.shape[0]

    @property
    def slices(self) -> int:
        """Of a unit."""
        return _WORD // self.width

    @property
    def groups(self) -> int:
        """Scales of an output."""
        return self.scales.shape[0]

    @property
    def group_slices(self) -> int:
        """Slices that share a scale; all there are where one scale is for all inputs."""
        return self.units * self.slices if self.groups == 1 else self.group_size // self.slice

    @property
    def run(self) -> int:
        """Slices whose products are summed up before they are scaled: a unit has whole runs, a run has one scale."""
        return math.gcd(self.group_slices, self.slices)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        tensors = (self.words, self.scales, self.zeros, self.order)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def why_no_words(weight: QuantizedWeight | Float8Weight) -> str:
    """In words, why the weight cannot be packed so; empty where it can."""
    if isinstance(weight, QuantizedWeight):
        group_size, columns = weight.group_size, weight.columns
    else:
        group_size, columns = weight.block[1], weight.inputs
    if group_size < columns and group_size % SLICES[-1]:
        return f"groups of {group_size}"
    if isinstance(weight, Float8Weight) and bool(((weight.values.view(torch.uint8) & _NAN) == _NAN).any()):
        return "NaN among the weights"
    return ""


def words_of(weight: QuantizedWeight | Float8Weight) -> Words:
    """Pack ``weight``, of which :func:`why_no_words` says nothing."""
    if isinstance(weight, Float8Weight):
        sharing, group_size = min(weight.block[0], weight.outputs), min(weight.block[1], weight.inputs)
        words = _packed(weight.values.view(torch.uint8), 8, _slice(group_size, weight.inputs))
        scales = weight.scales.t().contiguous()
        return Words(words, scales, None, None, "e4m3", 8, 0, weight.outputs, weight.inputs, group_size, sharing)
    width, group_size = _width(weight), min(weight.group_size, weight.columns)
    return Words(
        words=_packed(weight.integers, width, _slice(group_size, weight.columns)),
        scales=weight.scales.t().contiguous(),
        zeros=None if weight.zeros is None else weight.zeros.t().contiguous(),
        order=weight.order,
        kind="integers",
        width=width,
        middle=weight.middle,
        outputs=weight.outputs,
        inputs=weight.columns,
        group_size=group_size,
        sharing=1,
    )


def _width(weight: QuantizedWeight) -> int:
    if weight.bits > PAIRED_BITS:
        return 8
    return 8 if weight.zeros is not None and int(weight.zeros.max()) > _MOST_PAIRED_ZERO else 4


def _slice(group_size: int, inputs: int) -> int:
    return SLICES[0] if group_size == inputs else next(size for size in SLICES if group_size % size == 0)


def _packed(integers: Tensor, width: int, size: int) -> Tensor:
    """[units, out, size] int32 of [out, in] uint8."""
    outputs, inputs = integers.shape
    slices = _WORD // width
    padded = F.pad(integers, (0, -inputs % (slices * size)))
    units = padded.view(outputs, -1, slices, size).transpose(0, 1)
    words = torch.zeros(len(units), outputs, size, dtype=torch.int32, device=integers.device)
    for place in range(slices):
        shift = width * (place // 2) + _WORD // 2 * (place % 2)
        words |= units[:, :, place].to(torch.int32) << shift
    return words
