"""Token masks: the tokens that the requests of a step may sample, on their way from grammars to the sampler. No
torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def mask_words(vocab_size: int) -> int:
    """32-bit words that hold one bit a token."""
    return -(-vocab_size // 32)


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Bit masks of the sampling chunks whose request has a grammar; the others may sample any token."""

    indices: list[int]
    """Indices of the chunks among the step's sampling ones, in plan order."""
    words: np.ndarray
    """[len(indices), mask_words(vocabulary)] int32, contiguous: the lowest bit of the first word is token 0, and a bit
    of 1 allows its token. May be overwritten once the sampling is launched."""
