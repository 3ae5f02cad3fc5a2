"""Llama 2 and 3 (Touvron et al., arXiv 2307.09288; Llama team, arXiv 2407.21783), and what families like it build
on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from blade_llm.models.families.family import Family
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.rope_config import read_rope
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.norm import NormSpec
from blade_llm.spec.rope import RopeSpec


def llama_like(
    raw: RawConfig,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    head_norm: bool = False,
    windows: Sequence[int] | None = None,
    rope: RopeSpec | None = None,
    kv_heads: int | None = None,
    tied: bool = False,
) -> DecoderSpec:
    """RMS norms, rotary grouped-query attention, gated MLP.

    ``windows``: of each layer. ``rope``: as :func:`read_rope` reads it when not given. ``kv_heads`` and ``tied``: of a
    configuration that does not say.
    """
    heads, head_dim = raw.positive("num_attention_heads"), raw.head_dim()
    num_layers = raw.positive("num_hidden_layers")
    norm = NormSpec(raw.above_zero("rms_norm_eps", 1e-6))
    kv_heads = raw.positive("num_key_value_heads", kv_heads or heads)
    rope = rope or read_rope(raw, head_dim)
    mlp = MLPSpec(raw.positive("intermediate_size"), raw.activation(), bias=mlp_bias)

    def layer(window: int) -> LayerSpec:
        attention = AttentionSpec(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=rope,
            window=window,
            qkv_bias=qkv_bias,
            output_bias=output_bias,
            head_norm=norm if head_norm else None,
        )
        return LayerSpec(attention, mlp, norm, norm)

    windows = windows or [0] * num_layers
    kinds = {window: layer(window) for window in set(windows)}
    return DecoderSpec(
        vocab_size=raw.positive("vocab_size"),
        hidden_size=raw.positive("hidden_size"),
        layers=tuple(kinds[window] for window in windows),
        final_norm=norm,
        max_positions=raw.positive("max_position_embeddings"),
        tied=raw.flag("tie_word_embeddings", tied),
    )


def with_norms(spec: DecoderSpec, norm: NormSpec) -> DecoderSpec:
    """``spec`` with other norms than RMS, before both halves of each layer and after the last."""
    kinds = {layer: replace(layer, attention_norm=norm, mlp_norm=norm) for layer in set(spec.layers)}
    return replace(spec, layers=tuple(kinds[layer] for layer in spec.layers), final_norm=norm)


def _llama(raw: RawConfig) -> DecoderSpec:
    bias = raw.flag("attention_bias")
    return llama_like(raw, qkv_bias=bias, output_bias=bias, mlp_bias=raw.flag("mlp_bias"))


LLAMA = Family(_llama, Names())
