"""Integers of a few bits out of the 32-bit integers that hold them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

WORD_BITS = 32


def unpack_rows(words: Tensor, bits: int, count: int | None = None, *, spaced: bool = False) -> Tensor:
    """The integers of ``words`` ([rows, columns] int32), which follow each other down each column without gaps, the
    lowest bits first: [rows * 32 / bits, columns] uint8, or the first ``count`` of them. ``spaced``: but for the
    highest bits of each word, where not a whole one had room."""
    return _unpack(words, bits, spaced)[:count]


def _unpack(words: Tensor, bits: int, spaced: bool) -> Tensor:
    words = words.view(torch.int32)
    rows, columns = words.shape
    mask = (1 << bits) - 1
    if spaced or WORD_BITS % bits == 0:
        per_word = WORD_BITS // bits
        out = torch.empty(rows, per_word, columns, dtype=torch.uint8, device=words.device)
        for place in range(per_word):
            out[:, place] = (words >> (place * bits)) & mask
        return out.flatten(0, 1)
    # Some cross the border of two: of each 32 integers, `bits` words hold all.
    groups = F.pad(words, (0, 0, 0, -rows % bits)).view(-1, bits, columns)
    out = torch.empty(len(groups), WORD_BITS, columns, dtype=torch.uint8, device=words.device)
    for place in range(WORD_BITS):
        word, shift = divmod(place * bits, WORD_BITS)
        value = groups[:, word] >> shift
        if shift + bits > WORD_BITS:
            low = WORD_BITS - shift
            value = (value & ((1 << low) - 1)) | groups[:, word + 1] << low
        out[:, place] = value & mask
    return out.flatten(0, 1)
