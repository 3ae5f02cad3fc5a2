"""Feed-forward layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"]
"""As :mod:`blade_llm.kernels.activate` computes them."""


@dataclass(frozen=True, slots=True)
class MLPSpec:
    """``down(act(gate(x)) * up(x))`` (Shazeer, arXiv 2002.05202) when ``gated``, else ``down(act(up(x)))``."""

    inner: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
