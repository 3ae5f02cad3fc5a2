"""OLMo 2 (Allen AI, arXiv 2501.00656): Llama's layers that normalise what attention and MLP add instead of what they
read, and all queries of a token together, and all keys."""

from __future__ import annotations

from dataclasses import replace

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.decoder import DecoderSpec, LayerSpec


def _olmo2(raw: RawConfig) -> DecoderSpec:
    raw = RawConfig({"rms_norm_eps": 1e-5, **raw.fields})
    bias = raw.flag("attention_bias")
    spec = llama_like(raw, qkv_bias=bias, output_bias=bias, head_norm=True)
    norm = spec.final_norm

    def layer(of: LayerSpec) -> LayerSpec:
        attention = replace(of.grouped_attention, head_norm_whole=True)
        return LayerSpec(attention, of.mlp, None, None, attention_output_norm=norm, mlp_output_norm=norm)

    return replace(spec, layers=tuple(layer(each) for each in spec.layers))


OLMO2 = Family(
    _olmo2, Names(attention_output_norm="post_attention_layernorm", mlp_output_norm="post_feedforward_layernorm")
)
