"""RMS normalisation with its weight, alone or together with the residual addition before it."""

from __future__ import annotations

from torch import Tensor

from blade_llm.kernels.rms_norm import add_rms_norm, rms_norm


class RMSNorm:
    """Normalises over the hidden dimension."""

    __slots__ = ("eps", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] to the same."""
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The normalised sum of both, and the sum. May overwrite ``x``."""
        return add_rms_norm(x, residual, self.weight, self.eps)
