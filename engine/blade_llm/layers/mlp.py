"""The gated feed-forward layer (Shazeer, arXiv 2002.05202) with SiLU."""

from __future__ import annotations

from torch import Tensor

from blade_llm.kernels.silu_and_mul import silu_and_mul
from blade_llm.layers.linear import Linear


class GatedMLP:
    """``down(silu(gate(x)) * up(x))`` with gate and up in one matrix."""

    __slots__ = ("down", "gate_up")

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self.gate_up = gate_up
        self.down = down

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] to the same."""
        return self.down(silu_and_mul(self.gate_up(x)))
