"""The weights of one decoder layer, as the operator takes them, and what all layers have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from torch import Tensor

from blade_llm.kernels.experts.packed import MixtureWeights
from blade_llm.kernels.linear.packed import PackedLinear
from blade_llm.kernels.lora import FactorTable
from blade_llm.kernels.paged_attention.variant import PLAIN, AttentionVariant
from blade_llm.spec.mlp import Activation

NormKind = Literal["rms", "rms_unit_offset", "layer"]
NORMS: Final[dict[NormKind, int]] = {"rms": 0, "rms_unit_offset": 1, "layer": 2}
"""Each with its number in native.cpp; ``rms_unit_offset``: Gemma's factor ``1 + weight``."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's weights; None where a linear layer is not packed, or where there is no such weight."""

    input_norm: Tensor
    qkv: PackedLinear | None
    output: PackedLinear | None
    post_attention_norm: Tensor
    gate_up: PackedLinear | None
    """The first product of the MLP; without a gate that of ``up`` alone."""
    down: PackedLinear | None
    q_norm: Tensor | None = None
    """[head_dim], of each head of queries; with ``k_norm``."""
    k_norm: Tensor | None = None
    window: int = 0
    """A token sees only so many, itself included; 0: all before it."""
    variant: AttentionVariant = PLAIN
    input_norm_bias: Tensor | None = None
    post_attention_norm_bias: Tensor | None = None
    mixture: MixtureWeights | None = None
    """Experts in the place of the MLP, whose two weights are None then."""
    adapters: tuple[FactorTable | None, ...] = (None, None, None, None)
    """Of ``qkv``, ``output``, ``gate_up`` and ``down``."""

    @property
    def wrapped(self) -> tuple[FactorTable | None, ...]:
        """``adapters`` of the linear layers that there are."""
        return self.adapters if self.mixture is None else self.adapters[:2]

    @property
    def norms(self) -> tuple[Tensor, ...]:
        """The weights and biases of all norms."""
        weights = self.input_norm, self.post_attention_norm, self.q_norm, self.k_norm
        biases = self.input_norm_bias, self.post_attention_norm_bias
        return tuple(tensor for tensor in (*weights, *biases) if tensor is not None)


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """What all layers have in common."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Of the products of queries and keys."""
    inner: int
    """Width of the MLP; 0 where every layer has experts."""
    eps: float
    """Of all norms."""
    norm: NormKind = "rms"
    activation: Activation = "silu"
    gated: bool = True
