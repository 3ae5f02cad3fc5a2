"""What is added to single logits, token by token."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class SparseBias:
    """For each row a list of tokens, all different, and what is added to their logits: ``-inf`` forbids a token."""

    starts: Tensor
    """[rows + 1] int64: where each row's entries begin, and their number at the end."""
    tokens: Tensor
    """[entries] int64."""
    values: Tensor
    """[entries] fp64."""
