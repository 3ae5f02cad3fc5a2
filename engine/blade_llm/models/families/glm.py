"""GLM-4 (GLM team, arXiv 2406.12793) in transformers' own form: neighbours rotate, in half of the dimensions; gate and
up are one matrix. GLM-4-0414 normalises what attention and MLP add as well."""

from __future__ import annotations

from dataclasses import replace

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.rope_config import read_rope
from blade_llm.spec.decoder import DecoderSpec

_DEFAULTS = {"partial_rotary_factor": 0.5, "head_dim": 128, "num_key_value_heads": 2, "rms_norm_eps": 1.5625e-7}


def _glm(raw: RawConfig) -> DecoderSpec:
    raw = RawConfig({**_DEFAULTS, **raw.fields})
    rope = read_rope(raw, raw.head_dim(), partial=True, pairing="neighbours")
    return llama_like(raw, qkv_bias=raw.flag("attention_bias", True), rope=rope)


def _glm4(raw: RawConfig) -> DecoderSpec:
    spec = _glm(raw)
    norm = spec.final_norm
    layers = (replace(layer, attention_output_norm=norm, mlp_output_norm=norm) for layer in spec.layers)
    return replace(spec, layers=tuple(layers))


_NAMES = Names(up=("mlp.gate_up_proj",))
GLM = Family(_glm, _NAMES)
GLM4 = Family(_glm4, _NAMES)
