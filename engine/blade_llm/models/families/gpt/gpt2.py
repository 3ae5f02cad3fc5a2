"""GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019): learned positions, layer norms,
biases throughout, and weights stored as [in, out]."""

from __future__ import annotations

from blade_llm.models.families.family import Family
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec, LayerSpec, LearnedPositions
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.norm import NormSpec


def _gpt2(raw: RawConfig) -> DecoderSpec:
    hidden, heads = raw.positive("n_embd"), raw.positive("n_head")
    if hidden % heads:
        raise ValueError(f"n_embd {hidden} is not a multiple of n_head {heads}")
    raw.require("add_cross_attention", False)
    head_dim = hidden // heads
    norm = NormSpec(raw.above_zero("layer_norm_epsilon", 1e-5), "layer", bias=True)
    activation = raw.activation("activation_function", "gelu_new")
    mlp = MLPSpec(raw.positive("n_inner", 4 * hidden), activation, gated=False, bias=True)
    scale = head_dim**-0.5 if raw.flag("scale_attn_weights", True) else 1.0

    def layer(index: int) -> LayerSpec:
        own = scale / (index + 1) if raw.flag("scale_attn_by_inverse_layer_idx") else scale
        attention = AttentionSpec(heads, heads, head_dim, own, None, qkv_bias=True, output_bias=True)
        return LayerSpec(attention, mlp, norm, norm)

    positions = raw.positive("n_positions", 1024)
    return DecoderSpec(
        vocab_size=raw.positive("vocab_size"),
        hidden_size=hidden,
        layers=tuple(layer(index) for index in range(raw.positive("n_layer"))),
        final_norm=norm,
        max_positions=positions,
        tied=raw.flag("tie_word_embeddings", True),
        positions=LearnedPositions(positions),
    )


GPT2 = Family(
    _gpt2,
    Names(
        embedding="transformer.wte",
        positions="transformer.wpe",
        layer="transformer.h.{}",
        attention_norm="ln_1",
        qkv=("attn.c_attn",),
        output="attn.c_proj",
        mlp_norm="ln_2",
        up=("mlp.c_fc",),
        down="mlp.c_proj",
        final_norm="transformer.ln_f",
        transposed=True,
    ),
)
