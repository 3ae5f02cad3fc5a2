"""The weights of one decoder layer, as the operator takes them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from blade_llm.kernels.linear.packed import PackedLinear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's weights; None where a linear layer is not packed."""

    input_norm: Tensor
    qkv: PackedLinear | None
    output: PackedLinear | None
    post_attention_norm: Tensor
    gate_up: PackedLinear | None
    down: PackedLinear | None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    """Of the heads of queries and keys, [head_dim]; both or neither."""
    window: int = 0
    """Tokens that a token sees, itself included; 0 for all before it."""
