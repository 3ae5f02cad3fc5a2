"""StableLM 2 and 3B (Bellagente et al., arXiv 2402.17834): Llama's layers with layer norms and rotation of a part of
each head; attention and MLP side by side in some."""

from __future__ import annotations

from dataclasses import replace

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like, with_norms
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.rope_config import read_rope
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.norm import NormSpec


def _stablelm(raw: RawConfig) -> DecoderSpec:
    raw.require("qk_layernorm", False)
    raw = RawConfig({"partial_rotary_factor": 0.25, **raw.fields})
    rope = read_rope(raw, raw.head_dim(), partial=True)
    spec = llama_like(raw, qkv_bias=raw.flag("use_qkv_bias"), rope=rope)
    spec = with_norms(spec, NormSpec(raw.above_zero("layer_norm_eps", 1e-5), "layer", bias=True))
    if not raw.flag("use_parallel_residual"):
        return spec
    return replace(spec, layers=tuple(replace(layer, parallel=True, mlp_norm=None) for layer in spec.layers))


STABLELM = Family(_stablelm, Names())
