"""GPT-NeoX and Pythia (Black et al., arXiv 2204.06745; Biderman et al., arXiv 2304.01373): attention and MLP side by
side, partial rotation, one matrix of queries, keys and values by head. GPT-J (Wang and Komatsuzaki, 2021): behind one
norm, neighbours rotate in the first dimensions of a head."""

from __future__ import annotations

from blade_llm.models.families.family import Family
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.rope_config import read_rope
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.norm import NormSpec


def _gpt_neox(raw: RawConfig) -> DecoderSpec:
    older = {"partial_rotary_factor": raw.get("rotary_pct", 0.25), "rope_theta": raw.get("rotary_emb_base", 10_000)}
    raw = RawConfig({**older, **raw.fields})
    heads, head_dim = raw.positive("num_attention_heads"), raw.head_dim()
    norm = NormSpec(raw.above_zero("layer_norm_eps", 1e-5), "layer", bias=True)
    bias = raw.flag("attention_bias", True)
    rope = read_rope(raw, head_dim, partial=True)
    attention = AttentionSpec(heads, heads, head_dim, head_dim**-0.5, rope, qkv_bias=bias, output_bias=bias)
    mlp = MLPSpec(raw.positive("intermediate_size"), raw.activation(default="gelu"), gated=False, bias=True)
    layer = LayerSpec(attention, mlp, norm, norm, parallel=raw.flag("use_parallel_residual", True))
    return DecoderSpec(
        vocab_size=raw.positive("vocab_size"),
        hidden_size=raw.positive("hidden_size"),
        layers=(layer,) * raw.positive("num_hidden_layers"),
        final_norm=norm,
        max_positions=raw.positive("max_position_embeddings"),
        tied=raw.flag("tie_word_embeddings"),
    )


def _gpt_j(raw: RawConfig) -> DecoderSpec:
    hidden, heads = raw.positive("n_embd"), raw.positive("n_head")
    if hidden % heads:
        raise ValueError(f"n_embd {hidden} is not a multiple of n_head {heads}")
    raw.require("tie_word_embeddings", False)
    head_dim = hidden // heads
    part = RawConfig({"partial_rotary_factor": raw.positive("rotary_dim", 64) / head_dim})
    rope = read_rope(part, head_dim, partial=True, pairing="neighbours")
    attention = AttentionSpec(heads, heads, head_dim, head_dim**-0.5, rope)
    activation = raw.activation("activation_function", "gelu_new")
    mlp = MLPSpec(raw.positive("n_inner", 4 * hidden), activation, gated=False, bias=True)
    norm = NormSpec(raw.above_zero("layer_norm_epsilon", 1e-5), "layer", bias=True)
    return DecoderSpec(
        vocab_size=raw.positive("vocab_size"),
        hidden_size=hidden,
        layers=(LayerSpec(attention, mlp, norm, None, parallel=True),) * raw.positive("n_layer"),
        final_norm=norm,
        max_positions=raw.positive("n_positions", 2048),
        tied=False,
        head_bias=True,
    )


GPT_NEOX = Family(
    _gpt_neox,
    Names(
        embedding="gpt_neox.embed_in",
        layer="gpt_neox.layers.{}",
        qkv=("attention.query_key_value",),
        qkv_layout="grouped",
        output="attention.dense",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        final_norm="gpt_neox.final_layer_norm",
        head="embed_out",
    ),
)
GPT_J = Family(
    _gpt_j,
    Names(
        embedding="transformer.wte",
        layer="transformer.h.{}",
        attention_norm="ln_1",
        qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        output="attn.out_proj",
        up=("mlp.fc_in",),
        down="mlp.fc_out",
        final_norm="transformer.ln_f",
    ),
)
