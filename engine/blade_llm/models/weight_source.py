"""The source of a model's tensors; :mod:`blade_llm.weights.sources` has the real ones."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class WeightSource(Protocol):
    """Gives a model its tensors by their names in the checkpoint."""

    def tensor(self, name: str) -> Tensor:
        """The tensor of this name."""

    def stacked(self, names: list[str]) -> Tensor:
        """Several tensors, concatenated along the first dimension."""
