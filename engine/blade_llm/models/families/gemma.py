"""Gemma (Gemma team, arXiv 2403.08295): Llama's layers with norms of ``1 + weight``, a GELU gate, and embeddings times
the root of their width."""

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


def _gemma(raw: RawConfig) -> DecoderSpec:
    """The first checkpoints have the tanh form of GELU under the name ``gelu``."""
    return _gemma_like(raw, "hidden_activation" if "hidden_activation" in raw.fields else "hidden_act")


GEMMA = Family(_gemma, Names())
