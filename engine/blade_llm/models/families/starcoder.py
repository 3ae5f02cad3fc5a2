"""StarCoder2 (Lozhkov et al., arXiv 2402.19173): rotary grouped-query attention with a window, layer norms, an MLP
without a gate, biases throughout."""

from __future__ import annotations

from dataclasses import replace

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like, with_norms
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.norm import NormSpec


def _starcoder2(raw: RawConfig) -> DecoderSpec:
    bias = raw.flag("use_bias", True)
    window = raw.positive("sliding_window") if "sliding_window" in raw.fields else 0
    windows = [window] * raw.positive("num_hidden_layers")
    spec = llama_like(raw, qkv_bias=bias, output_bias=bias, windows=windows, kv_heads=2, tied=True)
    spec = with_norms(spec, NormSpec(raw.above_zero("norm_epsilon", 1e-5), "layer", bias=True))
    activation = raw.activation(default="gelu_pytorch_tanh")
    mlp = MLPSpec(raw.positive("intermediate_size"), activation, gated=False, bias=bias)
    return replace(spec, layers=tuple(replace(layer, mlp=mlp) for layer in spec.layers))


STARCODER2 = Family(_starcoder2, Names(up=("mlp.c_fc",), down="mlp.c_proj"))
