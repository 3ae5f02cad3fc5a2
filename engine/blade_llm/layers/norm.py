"""Normalisation over the hidden dimension, alone or together with the residual addition before it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from blade_llm.kernels.layer_norm import add_layer_norm, layer_norm
from blade_llm.kernels.rms_norm import add_rms_norm, rms_norm


class Norm(Protocol):
    """A normalisation with its weights."""

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] to the same."""

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The normalised sum of both, and the sum. May overwrite ``x``."""


class RMSNorm:
    """``x / rms(x) * weight``, or ``* (1 + weight)`` with ``unit_offset``."""

    __slots__ = ("eps", "unit_offset", "weight")
    bias: Tensor | None = None

    def __init__(self, weight: Tensor, eps: float, unit_offset: bool = False) -> None:
        self.weight = weight
        self.eps = eps
        self.unit_offset = unit_offset

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, unit_offset=self.unit_offset)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, self.weight, self.eps, unit_offset=self.unit_offset)


class NoNorm:
    """The addition alone."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return total, total


class LayerNorm:
    """``(x - mean(x)) / std(x) * weight + bias``."""

    __slots__ = ("bias", "eps", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self.weight = weight
        self.bias = bias
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return add_layer_norm(x, residual, self.weight, self.bias, self.eps)
