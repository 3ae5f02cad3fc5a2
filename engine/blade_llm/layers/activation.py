"""Activations of feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.silu_and_mul import silu_and_mul
from blade_llm.spec.mlp import Activation

ACTIVATIONS: Final[Mapping[Activation, Callable[[Tensor], Tensor]]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


def gate(activation: Activation) -> Callable[[Tensor], Tensor]:
    """``act(gate) * up`` of [tokens, 2 * inner], gate first; the argument may be overwritten."""
    if activation == "silu":
        return silu_and_mul
    function = ACTIVATIONS[activation]

    def gated(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return function(gate).mul_(up)

    return gated
