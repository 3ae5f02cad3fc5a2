"""A decoder: its layers, and what is before and after them."""

from __future__ import annotations

from dataclasses import dataclass

from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.norm import NormSpec


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """``x += attention(norm(x))``, then ``x += mlp(norm(x))``; or both at once of the same ``x``, when ``parallel``."""

    attention: AttentionSpec
    mlp: MLPSpec
    attention_norm: NormSpec
    mlp_norm: NormSpec | None
    """None where parallel halves share one norm."""
    parallel: bool = False
    attention_output_norm: NormSpec | None = None
    """Of what attention adds."""
    mlp_output_norm: NormSpec | None = None
    """Of what the MLP adds."""
    residual_scale: float = 1.0
    """Of what both add."""

    def __post_init__(self) -> None:
        if self.mlp_norm is None and not self.parallel:
            raise ValueError("a layer whose halves follow each other has a norm for each")

    @property
    def norms(self) -> tuple[NormSpec, ...]:
        """All that the layer has."""
        norms = (
            self.attention_norm,
            self.mlp_norm,
            self.attention_output_norm,
            self.mlp_output_norm,
            self.attention.head_norm,
        )
        return tuple(norm for norm in norms if norm is not None)


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
    head_bias: bool = False
    embedding_scale: float = 1.0
    """Of the embeddings."""
    logits_scale: float = 1.0
    """Of the logits."""

    @property
    def num_heads(self) -> int:
        """Query heads, equal in all layers."""
        return self.layers[0].attention.num_heads

    @property
    def windows(self) -> tuple[int, ...]:
        """Of each layer; see :class:`~blade_llm.spec.attention.AttentionSpec`."""
        return tuple(layer.attention.window for layer in self.layers)

    @property
    def widest(self) -> int:
        """Numbers that the widest layer makes of a token: queries, keys, values, and the arrays of the MLP."""
        return max(
            layer.attention.query_size + 2 * layer.attention.kv_size + (2 + layer.mlp.gated) * layer.mlp.inner
            for layer in self.layers
        )

    @property
    def gated_silu(self) -> tuple[int, ...]:
        """Inner sizes of the MLPs for which there is a kernel."""
        inner = {layer.mlp.inner for layer in self.layers if layer.mlp.gated and layer.mlp.activation == "silu"}
        return tuple(sorted(inner))

    @property
    def head_norms(self) -> bool:
        """Some layer normalises its heads."""
        return any(layer.attention.head_norm is not None for layer in self.layers)
