"""The protocol of packed experts, whichever implementation packed them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class PackedExperts(Protocol):
    """Gated MLPs, of which each token is computed by a few."""

    nbytes: int
    """Of the packed weights with scales and padding."""

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """[tokens, hidden] to the same: for each token the weighted sum over its experts.

        ``ids``: [tokens, top_k] int32, those of a token all different; ``weights``: [tokens, top_k] fp32.
        """
