"""Which tokens some of the rows may have."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowMasks:
    """Bit masks of a few rows among many; the others may have any token, and cost nothing."""

    index: Tensor
    """[rows] int64: each row's place in :attr:`words`, -1 for one without a mask."""
    words: Tensor
    """[masks, ceil(vocabulary / 32)] int32, contiguous: the lowest bit of the first word is token 0, and a bit of 1
    allows its token."""
