"""The feed-forward layer."""

from __future__ import annotations

from torch import Tensor

from blade_llm.layers.activation import ACTIVATIONS, gate
from blade_llm.layers.linear import Linear
from blade_llm.layers.step import StepMetadata
from blade_llm.spec.mlp import MLPSpec


class MLP:
    """``down(act(up(x)))``, or ``down(act(gate(x)) * up(x))`` with gate and up in one matrix."""

    __slots__ = ("_activate", "down", "spec", "up")

    def __init__(self, spec: MLPSpec, up: Linear, down: Linear) -> None:
        self.spec = spec
        self.up = up
        self.down = down
        self._activate = gate(spec.activation) if spec.gated else ACTIVATIONS[spec.activation]

    def __call__(self, x: Tensor, step: StepMetadata) -> Tensor:
        """[tokens, hidden] to the same."""
        return self.down(self._activate(self.up(x, step)), step)
