"""Phi-1 and Phi-2 (Gunasekar et al., arXiv 2306.11644): attention and MLP side by side behind one layer norm. Phi-3 and
Phi-4 (Abdin et al., arXiv 2404.14219, 2412.08905): queries, keys and values in one matrix, gate and up in
another; longrope; partial rotation in some."""

from __future__ import annotations

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.rope_config import read_rope
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.norm import NormSpec


def _phi(raw: RawConfig) -> DecoderSpec:
    raw.require("qk_layernorm", False)
    raw = RawConfig({"partial_rotary_factor": 0.5, **raw.fields})
    heads, head_dim = raw.positive("num_attention_heads"), raw.head_dim()
    norm = NormSpec(raw.above_zero("layer_norm_eps", 1e-5), "layer", bias=True)
    kv_heads, rope = raw.positive("num_key_value_heads", heads), read_rope(raw, head_dim, partial=True)
    attention = AttentionSpec(heads, kv_heads, head_dim, head_dim**-0.5, rope, qkv_bias=True, output_bias=True)
    mlp = MLPSpec(raw.positive("intermediate_size"), raw.activation(default="gelu_new"), gated=False, bias=True)
    return DecoderSpec(
        vocab_size=raw.positive("vocab_size"),
        hidden_size=raw.positive("hidden_size"),
        layers=(LayerSpec(attention, mlp, norm, None, parallel=True),) * raw.positive("num_hidden_layers"),
        final_norm=norm,
        max_positions=raw.positive("max_position_embeddings"),
        tied=raw.flag("tie_word_embeddings"),
        head_bias=True,
    )


def _phi3(raw: RawConfig) -> DecoderSpec:
    window = raw.positive("sliding_window") if "sliding_window" in raw.fields else 0
    windows = [window] * raw.positive("num_hidden_layers")
    return llama_like(raw, windows=windows, rope=read_rope(raw, raw.head_dim(), partial=True))


PHI = Family(
    _phi,
    Names(output="self_attn.dense", up=("mlp.fc1",), down="mlp.fc2", final_norm="model.final_layernorm"),
)
PHI3 = Family(_phi3, Names(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)))
