"""Falcon (Almazrouei et al., arXiv 2311.16867): attention and MLP side by side, with one key head (7B), or several and
a norm for each half (40B, 180B) or one for both (Falcon 2). Small models (RW) are in the order of BLOOM, with ALiBi."""

from __future__ import annotations

from dataclasses import replace

from blade_llm.models.families.family import Family
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.rope_config import read_rope
from blade_llm.spec.alibi import alibi_slopes
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.norm import NormSpec

_NAMES = Names(
    embedding="transformer.word_embeddings",
    layer="transformer.h.{}",
    qkv=("self_attention.query_key_value",),
    qkv_layout="grouped",
    output="self_attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    final_norm="transformer.ln_f",
)


def _two_norms(raw: RawConfig) -> bool:
    """Whether attention and MLP, side by side, have a norm each."""
    return raw.flag("new_decoder_architecture") and raw.get("num_ln_in_parallel_attn", 2) == 2


def _falcon(raw: RawConfig) -> DecoderSpec:
    older = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "num_kv_heads": "n_head_kv"}
    raw = RawConfig(
        {**{new: raw.get(old) for new, old in older.items()}, "hidden_size": raw.get("n_embed"), **raw.fields}
    )
    hidden, heads, head_dim = raw.positive("hidden_size"), raw.positive("num_attention_heads"), raw.head_dim()
    newer, bias, scale = raw.flag("new_decoder_architecture"), raw.flag("bias"), head_dim**-0.5
    kv_heads = raw.positive("num_kv_heads", heads) if newer or not raw.flag("multi_query", True) else 1
    # The models add ALiBi before they scale. Their code rounds it to bf16, which is exact up to position 256.
    slopes = tuple(slope * scale for slope in alibi_slopes(heads)) if raw.flag("alibi") else ()
    rope = None if slopes else read_rope(raw, head_dim)
    attention = AttentionSpec(
        heads, kv_heads, head_dim, scale, rope, qkv_bias=bias, output_bias=bias, alibi_slopes=slopes
    )
    activation = raw.activation("activation", "gelu")
    mlp = MLPSpec(raw.positive("ffn_hidden_size", 4 * hidden), activation, gated=False, bias=bias)
    norm = NormSpec(raw.above_zero("layer_norm_epsilon", 1e-5), "layer", bias=True)
    parallel = newer or raw.flag("parallel_attn", True)
    layer = LayerSpec(attention, mlp, norm, norm if _two_norms(raw) or not parallel else None, parallel=parallel)
    return DecoderSpec(
        vocab_size=raw.positive("vocab_size"),
        hidden_size=hidden,
        layers=(layer,) * raw.positive("num_hidden_layers"),
        final_norm=norm,
        max_positions=raw.positive("max_position_embeddings", 2048),
        tied=raw.flag("tie_word_embeddings", True),
    )


def _names(raw: RawConfig) -> Names:
    return replace(_NAMES, attention_norm="ln_attn", mlp_norm="ln_mlp") if _two_norms(raw) else _NAMES


FALCON = Family(_falcon, _names)
