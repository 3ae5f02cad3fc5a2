"""Attention."""

from __future__ import annotations

from dataclasses import dataclass

from blade_llm.spec.norm import NormSpec
from blade_llm.spec.rope import RopeSpec


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Grouped-query attention (Ainslie et al., arXiv 2305.13245)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Of the products of queries and keys."""
    rope: RopeSpec | None
    """None: positions do not come into attention."""
    window: int = 0
    """A token sees only so many, itself included; 0: all before it."""
    qkv_bias: bool = False
    output_bias: bool = False
    head_norm: NormSpec | None = None
    """RMS of each head of queries and keys, before the rotation (Henry et al., arXiv 2010.04245)."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_attention_heads {self.num_heads} is not a multiple of num_key_value_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; kernels have two halves of a head")

    @property
    def query_size(self) -> int:
        """Outputs of the query projection."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Outputs of the key projection, and of the value projection."""
        return self.num_kv_heads * self.head_dim
