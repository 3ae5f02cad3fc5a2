"""Feed-forward layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
"""``gelu`` by the error function, ``gelu_tanh`` by its approximation."""


@dataclass(frozen=True, slots=True)
class MLPSpec:
    """``down(act(gate(x)) * up(x))`` (Shazeer, arXiv 2002.05202) when ``gated``, else ``down(act(up(x)))``."""

    inner: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
