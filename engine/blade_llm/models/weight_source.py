"""The source of a model's tensors; :mod:`blade_llm.weights.sources` has the real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from blade_llm.kernels.linear.packed import PackedLinear
from blade_llm.spec.slices import Slice


class WeightSource(Protocol):
    """Gives a model its tensors by their names in the checkpoint."""

    @property
    def dtype(self) -> torch.dtype:
        """The model's type."""

    def tensor(self, name: str, block: Slice | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of this name, or a block of it, contiguous, which alone is read then; ``dtype``: another than the
        model's type."""

    def stored(self, name: str, block: Slice | None = None) -> Tensor:
        """The tensor, or a block of it, in the type that the checkpoint has it in: good until the next call."""

    def stacked(self, names: list[str]) -> Tensor:
        """Several tensors, concatenated along the first dimension."""

    def made(self, keys: list[str], make: Callable[[], Tensor]) -> Tensor:
        """What ``make`` makes of tensors of this source; ``keys`` say which and how."""

    def packed(self, keys: list[str], make: Callable[[], PackedLinear]) -> PackedLinear:
        """The layer that ``make`` packs of quantised weights of this source; ``keys`` say which and how."""
