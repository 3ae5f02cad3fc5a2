"""OPT (Zhang et al., arXiv 2205.01068): learned positions, which begin at row 2, layer norms and biases throughout."""

from __future__ import annotations

from blade_llm.models.families.family import Family
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec, LayerSpec, LearnedPositions
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.norm import NormSpec

_OFFSET = 2


def _opt(raw: RawConfig) -> DecoderSpec:
    hidden, heads, head_dim = raw.positive("hidden_size"), raw.positive("num_attention_heads"), raw.head_dim()
    raw.require("do_layer_norm_before", True)
    raw.require("_remove_final_layer_norm", False)
    raw.require("layer_norm_elementwise_affine", True)
    raw.require("word_embed_proj_dim", hidden)
    bias = raw.flag("enable_bias", True)
    norm = NormSpec(1e-5, "layer", bias=True)
    attention = AttentionSpec(heads, heads, head_dim, head_dim**-0.5, None, qkv_bias=bias, output_bias=bias)
    mlp = MLPSpec(raw.positive("ffn_dim"), raw.activation("activation_function", "relu"), gated=False, bias=bias)
    positions = raw.positive("max_position_embeddings")
    return DecoderSpec(
        vocab_size=raw.positive("vocab_size"),
        hidden_size=hidden,
        layers=(LayerSpec(attention, mlp, norm, norm),) * raw.positive("num_hidden_layers"),
        final_norm=norm,
        max_positions=positions,
        tied=raw.flag("tie_word_embeddings", True),
        positions=LearnedPositions(positions + _OFFSET, _OFFSET),
    )


OPT = Family(
    _opt,
    Names(
        embedding="model.decoder.embed_tokens",
        positions="model.decoder.embed_positions",
        layer="model.decoder.layers.{}",
        attention_norm="self_attn_layer_norm",
        output="self_attn.out_proj",
        mlp_norm="final_layer_norm",
        up=("fc1",),
        down="fc2",
        final_norm="model.decoder.final_layer_norm",
    ),
)
