"""Command R (Cohere, "Command R", 2024): attention and MLP side by side behind one layer norm without bias, neighbours
rotate, scaled logits. Norms of each head (Command R+) are not computed."""

from __future__ import annotations

from dataclasses import replace

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like, with_norms
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.rope_config import read_rope
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.norm import NormSpec


def _cohere(raw: RawConfig) -> DecoderSpec:
    raw.require("use_qk_norm", False)
    bias = raw.flag("attention_bias")
    rope = read_rope(raw, raw.head_dim(), pairing="neighbours", default_theta=500_000.0)
    spec = llama_like(raw, qkv_bias=bias, output_bias=bias, rope=rope, tied=True)
    spec = with_norms(spec, NormSpec(raw.above_zero("layer_norm_eps", 1e-5), "layer"))
    layers = tuple(replace(layer, parallel=True, mlp_norm=None) for layer in spec.layers)
    return replace(spec, layers=layers, logits_scale=raw.above_zero("logit_scale", 0.0625))


COHERE = Family(_cohere, Names())
