"""A decoder: its layers, and what is before and after them."""

from __future__ import annotations

from dataclasses import dataclass

from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.moe import MoESpec
from blade_llm.spec.norm import NormSpec
from blade_llm.spec.prediction import PredictionSpec


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """``x += attention(norm(x))``, then ``x += mlp(norm(x))``; or both at once of the same ``x``, when ``parallel``."""

    attention: AttentionSpec | LatentAttentionSpec
    mlp: MLPSpec | MoESpec
    attention_norm: NormSpec | None
    """None where only what attention adds is normalised."""
    mlp_norm: NormSpec | None
    """None where parallel halves share one norm, or where only what the MLP adds is normalised."""
    parallel: bool = False
    attention_output_norm: NormSpec | None = None
    """Of what attention adds."""
    mlp_output_norm: NormSpec | None = None
    """Of what the MLP adds."""
    residual_scale: float = 1.0
    """Of what both add."""
    norms_after: bool = False
    """``x = norm(x + attention(x))``, then ``x = norm(x + mlp(x))``, with the same two norms; of encoders."""

    def __post_init__(self) -> None:
        if self.mlp_norm is None and self.mlp_output_norm is None and not self.parallel:
            raise ValueError("a layer whose halves follow each other has a norm for each")
        if self.attention_norm is None and (self.attention_output_norm is None or self.parallel):
            raise ValueError("attention has a norm before it or after it")

    @property
    def grouped_attention(self) -> AttentionSpec:
        """Its attention, of a family that has no latent attention."""
        assert isinstance(self.attention, AttentionSpec)
        return self.attention

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
class ClassifierSpec:
    """What a cross-encoder makes a score of a pooled state with (Nogueira & Cho, arXiv 1901.04085)."""

    dense: bool
    """``output(tanh(dense(state)))``; else ``output(state)``."""
    bias: bool


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Token ids in, logits out."""

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec | None
    """None where the layers have their norms after them."""
    max_positions: int
    """The longest sequence that the model was made for."""
    tied: bool
    """The output matrix is the embedding table."""
    positions: LearnedPositions | None = None
    embedding_norm: NormSpec | None = None
    """Of the embeddings, before the first layer."""
    head: bool = True
    """Logits are computed; without it hidden states are all there is, for embeddings."""
    head_bias: bool = False
    head_unit_rows: bool = False
    """Rows of the output matrix are divided by their Euclidean norms."""
    embedding_scale: float = 1.0
    """Of the embeddings."""
    logits_scale: float = 1.0
    """Of the logits."""
    logits_softcap: float = 0.0
    """Logits become ``logits_softcap * tanh(logit / logits_softcap)``; 0: they stay."""
    token_types: int = 0
    """Rows of a table that tells the first text of a pair from the second; 0 for none."""
    classifier: ClassifierSpec | None = None
    prediction_layers: int = 0
    """Layers for multi-token prediction that a checkpoint may have after the others; they are no part of the model."""
    prediction: PredictionSpec | None = None
    """Of a head that drafts for another model, whose embeddings it takes; its layers are one."""
    begins: bool = True
    """It begins with the embedding; else with the hidden states that an earlier stage of a pipeline has computed."""
    ends: bool = True
    """It ends with the last norm and what follows it; else a later stage goes on."""
    bidirectional: bool = False
    """An encoder: each token sees its whole sequence, which one step must hold; nothing is kept between steps."""

    @property
    def num_heads(self) -> int:
        """Query heads, equal in all layers."""
        return self.layers[0].attention.num_heads

    @property
    def expanded_width(self) -> int:
        """Numbers that each token of a context takes where latent attention expands it; 0 without latent attention."""
        attentions = (layer.attention for layer in self.layers)
        return max((a.expanded_width for a in attentions if isinstance(a, LatentAttentionSpec)), default=0)

    @property
    def widest(self) -> int:
        """Numbers that the widest layer makes of a token: those of attention, and the arrays of the MLP."""
        return max(layer.attention.width + _mlp_width(layer.mlp, self.hidden_size) for layer in self.layers)


def _mlp_width(spec: MLPSpec | MoESpec, hidden: int) -> int:
    """Numbers that a token takes between a layer's norm and its sum. Of experts, each that a token has reads its own
    copy of the token and writes its own result; logits and scores of the router are in fp32."""
    if isinstance(spec, MLPSpec):
        return (2 + spec.gated) * spec.inner
    shared = hidden + _mlp_width(spec.shared, hidden) if spec.shared is not None else 0
    return spec.routing.top_k * (2 * hidden + 3 * spec.inner) + 4 * spec.routing.num_experts + shared
