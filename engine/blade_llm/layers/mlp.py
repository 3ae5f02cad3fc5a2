"""The feed-forward layer."""

from __future__ import annotations

from torch import Tensor

from blade_llm.kernels.activate import activate
from blade_llm.layers.linear import Linear
from blade_llm.layers.step import StepMetadata
from blade_llm.spec.mlp import MLPSpec


class MLP:
    """``down(act(up(x)))``, or ``down(act(gate(x)) * up(x))`` with gate and up in one matrix."""

    __slots__ = ("down", "spec", "up")

    def __init__(self, spec: MLPSpec, up: Linear, down: Linear) -> None:
        self.spec = spec
        self.up = up
        self.down = down

    def __call__(self, x: Tensor, step: StepMetadata | None) -> Tensor:
        """[tokens, hidden] to the same."""
        between = activate(self.up(x, step), self.spec.activation, gated=self.spec.gated)
        return self.down(between, step)
