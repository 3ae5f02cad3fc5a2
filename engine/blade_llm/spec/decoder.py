"""A decoder: its layers, and what is before and after them."""

from __future__ import annotations

from dataclasses import dataclass

from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.norm import NormSpec


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """``x += attention(norm(x))``, then ``x += mlp(norm(x))``."""

    attention: AttentionSpec
    mlp: MLPSpec
    attention_norm: NormSpec
    mlp_norm: NormSpec


@dataclass(frozen=True, slots=True)
class LearnedPositions:
    """A table of vectors that are added to the embeddings."""

    rows: int
    offset: int = 0
    """The row of position 0."""


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Token ids in, logits out."""

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec
    max_positions: int
    """The longest sequence that the model was made for."""
    tied: bool
    """The output matrix is the embedding table."""
    positions: LearnedPositions | None = None
