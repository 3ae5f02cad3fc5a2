"""Integers of a few bits in 32-bit ones, as compressed-tensors' ``pack-quantized`` has them: one after the other
without gaps, the lowest bits first."""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

WORD_BITS: Final = 32
_ROWS: Final = 1024
"""Rows that are packed at a time: the 64-bit integers of general widths stay small beside the weight."""


def pack_columns(integers: Tensor, bits: int) -> Tensor:
    """``integers`` ([rows, columns] uint8, below ``2**bits``) as [rows, ceil(columns * bits / 32)] int32."""
    words = -(-integers.shape[1] * bits // WORD_BITS)
    packed = torch.empty(len(integers), words, dtype=torch.int32)
    for start in range(0, len(integers), _ROWS):
        rows = slice(start, start + _ROWS)
        packed[rows] = _packed(F.pad(integers[rows], (0, -integers.shape[1] % WORD_BITS)), bits)[:, :words]
    return packed


def pack_rows(integers: Tensor, bits: int) -> Tensor:
    """``integers`` ([rows, columns] uint8) down each column: [ceil(rows * bits / 32), columns] int32."""
    return pack_columns(integers.t().contiguous(), bits).t().contiguous()


def _packed(integers: Tensor, bits: int) -> Tensor:
    """Of a multiple of 32 columns."""
    if bits == 8:
        return _as_words(integers)
    if bits == 4:
        return _as_words(integers[:, 0::2] | integers[:, 1::2] << 4)
    groups = integers.view(len(integers), -1, WORD_BITS).long()
    words = torch.zeros(*groups.shape[:2], bits + 1, dtype=torch.int64)
    for place in range(WORD_BITS):
        word, shift = divmod(place * bits, WORD_BITS)
        value = groups[..., place] << shift
        words[..., word] |= value & 0xFFFFFFFF
        words[..., word + 1] |= value >> WORD_BITS
    return words[..., :bits].to(torch.int32).flatten(1)


def _as_words(values: Tensor) -> Tensor:
    """Four bytes each. By way of one dimension: the stride of a single row may be anything, and ``view`` refuses it."""
    return values.reshape(-1).view(torch.int32).view(len(values), -1)
