"""Gemma (Gemma team, arXiv 2403.08295): Llama's layers with norms of ``1 + weight``, a GELU gate, and embeddings times
the root of their width. Gemma 2 (arXiv 2408.00118): soft caps of attention and logits, four norms a layer, a window in
every other layer, a scale of queries of its own. Gemma 3 (arXiv 2503.19786) without images: normalised heads instead of
the soft caps, five layers with a window and a rotation of their own for each without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like, with_norms
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.rope_config import read_rope
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.norm import NormSpec
from blade_llm.spec.rope import RopeSpec


def _gemma_like(
    raw: RawConfig, activation: str, windows: tuple[int, ...] | None = None, rope: RopeSpec | None = None
) -> DecoderSpec:
    """``activation``: its field."""
    raw.require("use_bidirectional_attention", False)
    raw = RawConfig({"head_dim": 256, **raw.fields})
    named = str(raw.get(activation, "gelu_pytorch_tanh"))
    raw = RawConfig({**raw.fields, "hidden_act": "gelu_pytorch_tanh" if named == "gelu" else named})
    bias = raw.flag("attention_bias")
    spec = llama_like(raw, qkv_bias=bias, output_bias=bias, windows=windows, rope=rope, tied=True)
    spec = with_norms(spec, NormSpec(raw.above_zero("rms_norm_eps", 1e-6), "rms_unit_offset"))
    return replace(spec, embedding_scale=spec.hidden_size**0.5)


def _gemma2_like(
    raw: RawConfig, pattern: int, softcap: float, logits_softcap: float, rope: RopeSpec | None = None
) -> DecoderSpec:
    """``pattern``: one layer in so many has no window. The soft caps: of a configuration that does not say."""
    window = 0 if "sliding_window" in raw.nulls else raw.positive("sliding_window", 4096)
    if "layer_types" in raw.fields:
        windows = raw.layer_windows(window)
    else:
        pattern = raw.positive("sliding_window_pattern", pattern)
        windows = tuple(window if (i + 1) % pattern else 0 for i in range(raw.positive("num_hidden_layers")))
    spec = _gemma_like(raw, "hidden_activation", windows, rope)
    scale = raw.above_zero("query_pre_attn_scalar", 256) ** -0.5
    cap = _cap(raw, "attn_logit_softcapping", softcap)

    def layer(of: LayerSpec) -> LayerSpec:
        attention = replace(of.grouped_attention, scale=scale, softcap=cap)
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


def _gemma3(raw: RawConfig) -> DecoderSpec:
    """Layers with a window rotate by ``rope_local_base_freq``, unstretched; the others by ``rope_theta``."""
    raw = RawConfig({"head_dim": 256, "max_position_embeddings": 131_072, **raw.fields, **dict.fromkeys(raw.nulls)})
    written = raw.get("rope_parameters") or {}
    by_kind = "full_attention" in written or "sliding_attention" in written
    stretched = written.get("full_attention") if by_kind else written or raw.get("rope_scaling")
    full = _rope(raw, stretched, raw.above_zero("rope_theta", 1_000_000.0))
    local = _rope(raw, written.get("sliding_attention"), raw.above_zero("rope_local_base_freq", 10_000.0))
    spec = _gemma2_like(raw, 6, 0.0, 0.0, full)

    def layer(of: LayerSpec) -> LayerSpec:
        rope = local if of.attention.window else full
        return replace(of, attention=replace(of.grouped_attention, rope=rope, head_norm=of.attention_norm))

    return replace(spec, layers=tuple(layer(each) for each in spec.layers))


def _rope(raw: RawConfig, parameters: Mapping[str, Any] | None, theta: float) -> RopeSpec:
    """One of the two rotations. ``theta``: where ``parameters`` have none."""
    fields = {**raw.fields, "rope_parameters": {"rope_theta": theta, **(parameters or {})}}
    return read_rope(RawConfig(fields), raw.head_dim())


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
GEMMA3 = Family(_gemma3, _NAMES)
