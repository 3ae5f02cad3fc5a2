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
    """Bit masks of sampled positions whose request has a grammar; at the others any token may be sampled."""

    indices: list[int]
    """Indices among the step's sampled positions: one for each chunk that samples and one more for each of its draft
    tokens, in plan order."""
    words: np.ndarray
    """[len(indices), mask_words(vocabulary)] int32, contiguous: the lowest bit of the first word is token 0, and a bit
    of 1 allows its token. May be overwritten once the sampling is launched."""
