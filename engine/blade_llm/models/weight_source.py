"""The source of a model's tensors; :mod:`blade_llm.weights.sources` has the real ones."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from torch import Tensor


class WeightSource(Protocol):
    """Gives a model its tensors by their names in the checkpoint."""

    @property
    def names(self) -> Collection[str]:
        """Of all tensors."""

    def tensor(self, name: str) -> Tensor:
        """The tensor of this name."""

    def stacked(self, names: list[str]) -> Tensor:
        """Several tensors, concatenated along the first dimension."""
