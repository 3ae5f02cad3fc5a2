"""Activations as language models have them, for tests of quantisation: inputs that depend on each other, and a few that
are much larger than the rest."""

from __future__ import annotations

import torch
from torch import Tensor


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def correlated(tokens: int, inputs: int, seed: int = 0, noise: float = 0.1) -> Tensor:
    """[tokens, inputs] that mostly lie in a space of a quarter of the dimensions."""
    few = max(1, inputs // 4)
    common = normal(tokens, few, seed=seed) @ normal(few, inputs, seed=seed + 1) / few**0.5
    return common + noise * normal(tokens, inputs, seed=seed + 2)


def with_outliers(x: Tensor, channels: list[int], factor: float = 30.0) -> Tensor:
    """``x`` ([tokens, in]) with some inputs ``factor`` times as large."""
    x = x.clone()
    x[:, channels] *= factor
    return x
