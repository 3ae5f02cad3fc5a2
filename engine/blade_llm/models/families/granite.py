"""Granite 3 (IBM, "Granite 3.0 Language Models", 2024): Llama's layers with scales of embeddings, attention, residual
additions and logits."""

from __future__ import annotations

from dataclasses import replace

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.decoder import DecoderSpec


def _granite(raw: RawConfig) -> DecoderSpec:
    bias = raw.flag("attention_bias")
    spec = llama_like(raw, qkv_bias=bias, output_bias=bias, mlp_bias=raw.flag("mlp_bias"))
    (layer,) = set(spec.layers)
    attention = replace(layer.attention, scale=raw.above_zero("attention_multiplier", 1.0))
    layer = replace(layer, attention=attention, residual_scale=raw.above_zero("residual_multiplier", 1.0))
    return replace(
        spec,
        layers=(layer,) * len(spec.layers),
        embedding_scale=raw.above_zero("embedding_multiplier", 1.0),
        logits_scale=1.0 / raw.above_zero("logits_scaling", 1.0),
    )


GRANITE = Family(_granite, Names())
