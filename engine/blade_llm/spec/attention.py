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
    softcap: float = 0.0
    """Scaled scores become ``softcap * tanh(score / softcap)``; 0: they stay."""
    alibi_slopes: tuple[float, ...] = ()
    """Of each head: ``slope * (key position - query position)`` is added to the scores (Press et al., arXiv
    2108.12409). Empty: nothing is."""
    head_norm: NormSpec | None = None
    """RMS of each head of queries and keys, before the rotation (Henry et al., arXiv 2010.04245)."""

    head_norm_whole: bool = False
    """All queries of a token are normalised together, and all keys (OLMo 2, arXiv 2501.00656)."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_attention_heads {self.num_heads} is not a multiple of num_key_value_heads {self.num_kv_heads}"
            )
        if self.alibi_slopes and len(self.alibi_slopes) != self.num_heads:
            raise ValueError(f"{len(self.alibi_slopes)} ALiBi slopes for {self.num_heads} heads")
        if self.head_norm is not None and self.head_norm.kind == "layer":
            raise ValueError("heads are normalised by RMS alone")
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

    @property
    def rotary_width(self) -> int:
        """Dimensions that the tables of angles cover."""
        return self.head_dim

    @property
    def width(self) -> int:
        """Numbers that attention makes of a token: queries, keys, values."""
        return self.query_size + 2 * self.kv_size
