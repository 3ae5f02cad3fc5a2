"""Encoders for embeddings: BERT (Devlin et al., arXiv 1810.04805); RoBERTa (Liu et al., arXiv 1907.11692) and
XLM-RoBERTa (Conneau et al., arXiv 1911.02116), whose positions begin after the row of the padding token."""

from __future__ import annotations

from dataclasses import replace

from blade_llm.models.families.family import Family
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec, LayerSpec, LearnedPositions
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.norm import NormSpec


def _bert(raw: RawConfig) -> DecoderSpec:
    return _encoder(raw, 0)


def _roberta(raw: RawConfig) -> DecoderSpec:
    padding = raw.get("pad_token_id", 1)
    if type(padding) is not int or padding < 0:
        raise ValueError(f"'pad_token_id' must be a token id, not {padding!r}")
    return _encoder(raw, padding + 1)


def _encoder(raw: RawConfig, offset: int) -> DecoderSpec:
    """``offset``: the row of the first position."""
    raw.require("is_decoder", False)
    raw.require("add_cross_attention", False)
    raw.require("position_embedding_type", "absolute")
    heads, head_dim = raw.positive("num_attention_heads", 12), raw.head_dim()
    norm = NormSpec(raw.above_zero("layer_norm_eps", 1e-12), "layer", bias=True)
    attention = AttentionSpec(heads, heads, head_dim, head_dim**-0.5, None, qkv_bias=True, output_bias=True)
    activation = raw.activation("hidden_act", "gelu")
    mlp = MLPSpec(raw.positive("intermediate_size", 3072), activation, gated=False, bias=True)
    rows = raw.positive("max_position_embeddings", 512)
    if rows <= offset:
        raise ValueError(f"'max_position_embeddings' is {rows}, but the first position is in row {offset}")
    layer = LayerSpec(attention, mlp, norm, norm, norms_after=True)
    return DecoderSpec(
        vocab_size=raw.positive("vocab_size", 30522),
        hidden_size=raw.positive("hidden_size", 768),
        layers=(layer,) * raw.positive("num_hidden_layers", 12),
        final_norm=None,
        max_positions=rows - offset,
        tied=False,
        positions=LearnedPositions(rows, offset),
        head=False,
        embedding_norm=norm,
        token_types=raw.positive("type_vocab_size", 2),
        bidirectional=True,
    )


_NAMES = Names(
    embedding="bert.embeddings.word_embeddings",
    positions="bert.embeddings.position_embeddings",
    token_types="bert.embeddings.token_type_embeddings",
    embedding_norm="bert.embeddings.LayerNorm",
    layer="bert.encoder.layer.{}",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    up=("intermediate.dense",),
    down="output.dense",
    mlp_norm="output.LayerNorm",
    classifier_dense="bert.pooler.dense",
    classifier="classifier",
)

BERT = Family(_bert, _NAMES)
ROBERTA = Family(
    _roberta,
    replace(
        _NAMES,
        embedding="roberta.embeddings.word_embeddings",
        positions="roberta.embeddings.position_embeddings",
        token_types="roberta.embeddings.token_type_embeddings",
        embedding_norm="roberta.embeddings.LayerNorm",
        layer="roberta.encoder.layer.{}",
        classifier_dense="classifier.dense",
        classifier="classifier.out_proj",
    ),
)
