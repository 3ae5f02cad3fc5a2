"""Token masks: the tokens that the requests of a step may sample, on their way from grammars to the sampler. No
torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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

    def of(self, rows: range) -> TokenMasks:
        """Those of a range of the sampled positions, which are counted from its start."""
        first, end = bisect_left(self.indices, rows.start), bisect_left(self.indices, rows.stop)
        return TokenMasks([index - rows.start for index in self.indices[first:end]], self.words[first:end])


class DraftMasks(Protocol):
    """Masks of what a draft model samples, token by token, for requests with a grammar."""

    def first(self, slots: Sequence[int]) -> TokenMasks | None:
        """Of the first draft token of each of ``slots``; None: any may be sampled."""

    def after(self, tokens: Sequence[int], count: int) -> TokenMasks | None:
        """Of the next draft token of the first ``count`` slots, after ``tokens``, which were sampled last."""
