"""Gemma (Gemma team, arXiv 2403.08295): Llama's layers with norms of ``1 + weight``, a GELU gate, and embeddings times
the root of their width. Gemma 2 (arXiv 2408.00118): soft caps of attention and logits, four norms a layer, a window in
every other layer, a scale of queries of its own. Gemma 3 (arXiv 2503.19786) without images: normalised heads instead of
the soft caps, five layers with a window and a rotation of their own for each without."""

from __future__ import annotations

from dataclasses import replace

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.norm import NormSpec


def _gemma_like(raw: RawConfig, activation: str, windows: tuple[int, ...] | None = None) -> DecoderSpec:
    """``activation``: its field."""
    raw.require("use_bidirectional_attention", False)
    raw = RawConfig({"head_dim": 256, **raw.fields})
    named = str(raw.get(activation, "gelu_pytorch_tanh"))
    raw = RawConfig({**raw.fields, "hidden_act": "gelu_pytorch_tanh" if named == "gelu" else named})
    bias = raw.flag("attention_bias")
    spec = llama_like(raw, qkv_bias=bias, output_bias=bias, windows=windows, tied=True)
    norm = NormSpec(spec.final_norm.eps, "rms_unit_offset")

    def layer(of: LayerSpec) -> LayerSpec:
        return replace(of, attention_norm=norm, mlp_norm=norm)

    layers = tuple(layer(each) for each in spec.layers)
    return replace(spec, layers=layers, final_norm=norm, embedding_scale=spec.hidden_size**0.5)


def _gemma2_like(raw: RawConfig, pattern: int, softcap: float, logits_softcap: float) -> DecoderSpec:
    """``pattern``: one layer in so many has no window. The soft caps: of a configuration that does not say."""
    window = 0 if "sliding_window" in raw.nulls else raw.positive("sliding_window", 4096)
    if "layer_types" in raw.fields:
        windows = raw.layer_windows(window)
    else:
        pattern = raw.positive("sliding_window_pattern", pattern)
        windows = tuple(window if (i + 1) % pattern else 0 for i in range(raw.positive("num_hidden_layers")))
    spec = _gemma_like(raw, "hidden_activation", windows)
    scale = raw.above_zero("query_pre_attn_scalar", 256) ** -0.5
    cap = _cap(raw, "attn_logit_softcapping", softcap)

    def layer(of: LayerSpec) -> LayerSpec:
        attention = replace(of.attention, scale=scale, softcap=cap)
        norm = of.attention_norm
        return replace(of, attention=attention, attention_output_norm=norm, mlp_output_norm=norm)

    final_cap = _cap(raw, "final_logit_softcapping", logits_softcap)
    return replace(spec, layers=tuple(layer(each) for each in spec.layers), logits_softcap=final_cap)


def _cap(raw: RawConfig, name: str, default: float) -> float:
    """A soft cap; null is none."""
    if name in raw.nulls or (name not in raw.fields and not default):
        return 0.0
    return raw.above_zero(name, default)


def _gemma2(raw: RawConfig) -> DecoderSpec:
    return _gemma2_like(raw, 2, 50.0, 30.0)


def _gemma(raw: RawConfig) -> DecoderSpec:
    """The first checkpoints have the tanh form of GELU under the name ``gelu``."""
    return _gemma_like(raw, "hidden_activation" if "hidden_activation" in raw.fields else "hidden_act")


GEMMA = Family(_gemma, Names())
_NAMES = Names(
    attention_output_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
)
GEMMA2 = Family(_gemma2, _NAMES)
