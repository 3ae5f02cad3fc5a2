"""GLM-4 (GLM team, arXiv 2406.12793) in transformers' own form: neighbours rotate, in half of the dimensions; gate and
up are one matrix. GLM-4-0414 normalises what attention and MLP add as well. ChatGLM2 and ChatGLM3 (arXiv 2210.02414,
2406.12793) are GLM-4's layers under other names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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


def _chatglm(raw: RawConfig) -> DecoderSpec:
    for name, value in (("rmsnorm", True), ("post_layer_norm", True), ("multi_query_attention", True)):
        raw.require(name, value)
    raw.require("add_bias_linear", False)
    raw.require("apply_residual_connection_post_layernorm", False)
    raw.require("rope_ratio", 1, 1.0)  # what it does differs between versions of the models' code
    renamed: dict[str, Any] = {
        "vocab_size": raw.positive("padded_vocab_size"),
        "num_hidden_layers": raw.positive("num_layers"),
        "num_key_value_heads": raw.positive("multi_query_group_num", 1),
        "head_dim": raw.positive("kv_channels", 128),
        "intermediate_size": raw.positive("ffn_hidden_size"),
        "rms_norm_eps": raw.above_zero("layernorm_epsilon", 1e-5),
        "max_position_embeddings": raw.positive("seq_length", 2048),
        "attention_bias": raw.flag("add_qkv_bias"),
    }
    return _glm(RawConfig({**raw.fields, **renamed}))


_NAMES = Names(up=("mlp.gate_up_proj",))
GLM = Family(_glm, _NAMES)
GLM4 = Family(_glm4, _NAMES)
CHATGLM = Family(
    _chatglm,
    Names(
        embedding="transformer.embedding.word_embeddings",
        layer="transformer.encoder.layers.{}",
        qkv=("self_attention.query_key_value",),
        output="self_attention.dense",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        final_norm="transformer.encoder.final_layernorm",
        head="transformer.output_layer",
    ),
)
