"""Feed-forward layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"]
"""``gelu`` by the error function (Hendrycks & Gimpel, arXiv 1606.08415), ``gelu_tanh`` by its approximation with tanh
(``gelu_new`` in configurations, too), ``quick_gelu`` by ``x * sigmoid(1.702 x)``; ``relu2`` is the square of ``relu``
(So et al., arXiv 2109.08668)."""


@dataclass(frozen=True, slots=True)
class MLPSpec:
    """``down(act(gate(x)) * up(x))`` (Shazeer, arXiv 2002.05202) when ``gated``, else ``down(act(up(x)))``."""

    inner: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
