"""Which tokens the rows of a step may draw, on their way from grammars to the draw. No torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def mask_words(vocab_size: int) -> int:
    """32-bit words that hold one bit a token."""
    return -(-vocab_size // 32)


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Bit masks of the drawing rows that have a grammar; the other rows may draw anything."""

    indices: list[int]
    """Which of the step's drawing rows, in plan order."""
    words: np.ndarray
    """[len(indices), mask_words(vocabulary)] int32, contiguous: the lowest bit of the first word is token 0, and a bit
    of 1 allows its token. May be overwritten once the draw is launched."""
