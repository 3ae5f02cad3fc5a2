"""BLOOM (BigScience, arXiv 2211.05100): ALiBi instead of positions, a norm of the embeddings, layer norms and biases
throughout, queries, keys and values in one matrix by head. StarCoder2 (BigCode, arXiv 2402.19173): rotary grouped-query
attention with a window, layer norms, an MLP without a gate, biases throughout."""

from __future__ import annotations

from dataclasses import replace

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like, with_norms
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.alibi import alibi_slopes
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.norm import NormSpec


def _bloom(raw: RawConfig) -> DecoderSpec:
    older = {"hidden_size": "n_embed", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    raw = RawConfig({**{new: raw.get(old) for new, old in older.items()}, **raw.fields})
    raw.require("apply_residual_connection_post_layernorm", False)
    hidden, heads = raw.positive("hidden_size"), raw.positive("n_head")
    if hidden % heads:
        raise ValueError(f"hidden_size {hidden} is not a multiple of n_head {heads}")
    head_dim, slopes = hidden // heads, alibi_slopes(heads)
    norm = NormSpec(raw.above_zero("layer_norm_epsilon", 1e-5), "layer", bias=True)
    attention = AttentionSpec(
        heads, heads, head_dim, head_dim**-0.5, None, qkv_bias=True, output_bias=True, alibi_slopes=slopes
    )
    mlp = MLPSpec(4 * hidden, "gelu_tanh", gated=False, bias=True)
    return DecoderSpec(
        vocab_size=raw.positive("vocab_size"),
        hidden_size=hidden,
        layers=(LayerSpec(attention, mlp, norm, norm),) * raw.positive("n_layer"),
        final_norm=norm,
        max_positions=raw.positive("seq_length", 2048),
        tied=raw.flag("tie_word_embeddings", True),
        embedding_norm=norm,
    )


def _starcoder2(raw: RawConfig) -> DecoderSpec:
    bias = raw.flag("use_bias", True)
    window = raw.positive("sliding_window") if "sliding_window" in raw.fields else 0
    windows = [window] * raw.positive("num_hidden_layers")
    spec = llama_like(raw, qkv_bias=bias, output_bias=bias, windows=windows, kv_heads=2, tied=True)
    spec = with_norms(spec, NormSpec(raw.above_zero("norm_epsilon", 1e-5), "layer", bias=True))
    activation = raw.activation(default="gelu_pytorch_tanh")
    mlp = MLPSpec(raw.positive("intermediate_size"), activation, gated=False, bias=bias)
    return replace(spec, layers=tuple(replace(layer, mlp=mlp) for layer in spec.layers))


BLOOM = Family(
    _bloom,
    Names(
        embedding="transformer.word_embeddings",
        embedding_norm="transformer.word_embeddings_layernorm",
        layer="transformer.h.{}",
        qkv=("self_attention.query_key_value",),
        qkv_layout="grouped",
        output="self_attention.dense",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        final_norm="transformer.ln_f",
    ),
)
STARCODER2 = Family(_starcoder2, Names(up=("mlp.c_fc",), down="mlp.c_proj"))
