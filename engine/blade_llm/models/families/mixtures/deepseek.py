"""DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3 and R1 (arXiv 2412.19437): multi-head latent attention, experts of a few
groups and a shared one, plain MLPs in the first layers."""

from __future__ import annotations

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.families.family import Family
from blade_llm.models.families.mixtures.with_experts import with_experts
from blade_llm.models.layer_names.moe import MoENames
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.rope_config import read_rope, softmax_factor
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.moe import MoESpec, RoutingSpec
from blade_llm.spec.norm import NormSpec

LATENT_EPS = 1e-6
"""Of the norms of latent vectors, whatever ``rms_norm_eps`` is: both models' own code gives them none."""


def _attention(raw: RawConfig) -> LatentAttentionSpec:
    heads, bias = raw.positive("num_attention_heads"), raw.flag("attention_bias")
    if raw.positive("num_key_value_heads", heads) != heads:
        raise UnsupportedModelError("'num_key_value_heads' other than 'num_attention_heads' is not supported with MLA")
    nope, rotated = raw.positive("qk_nope_head_dim", 128), raw.positive("qk_rope_head_dim", 64)
    if rotated % 2:
        raise ValueError(f"'qk_rope_head_dim' {rotated} is odd; pairs of dimensions rotate")
    rank = 0 if "q_lora_rank" in raw.nulls else raw.positive("q_lora_rank", 1536)
    if bias and not rank:
        raise UnsupportedModelError("'attention_bias' without 'q_lora_rank' is not supported")
    return LatentAttentionSpec(
        num_heads=heads,
        latent_dim=raw.positive("kv_lora_rank", 512),
        nope_dim=nope,
        rope_dim=rotated,
        value_dim=raw.positive("v_head_dim", 128),
        scale=(nope + rotated) ** -0.5 * softmax_factor(raw),
        rope=read_rope(raw, rotated, pairing="neighbours" if raw.flag("rope_interleave", True) else "halves"),
        latent_norm=NormSpec(LATENT_EPS),
        query_rank=rank,
        down_bias=bias,
        output_bias=bias,
    )


def _decoder(raw: RawConfig, experts: MoESpec, dense: int, prediction_layers: int = 0) -> DecoderSpec:
    """``dense``: how many layers have a plain MLP, by default."""
    raw.require("moe_layer_freq", 1)
    raw.require("mlp_bias", False)
    count, dense = raw.positive("num_hidden_layers"), raw.count("first_k_dense_replace", dense)
    norm = NormSpec(raw.above_zero("rms_norm_eps", 1e-6))
    layer = LayerSpec(_attention(raw), MLPSpec(raw.positive("intermediate_size"), raw.activation()), norm, norm)
    spec = DecoderSpec(
        vocab_size=raw.positive("vocab_size"),
        hidden_size=raw.positive("hidden_size"),
        layers=(layer,) * count,
        final_norm=norm,
        max_positions=raw.positive("max_position_embeddings"),
        tied=raw.flag("tie_word_embeddings"),
        prediction_layers=prediction_layers,
    )
    return with_experts(spec, experts, range(min(dense, count), count))


def _shared_inner(raw: RawConfig, inner: int, experts: int) -> int:
    """Of all shared experts together."""
    return 0 if "n_shared_experts" in raw.nulls else inner * raw.count("n_shared_experts", experts)


def _deepseek_v2(raw: RawConfig) -> DecoderSpec:
    raw.require("scoring_func", "softmax")
    raw.require("topk_method", "greedy", "group_limited_greedy")
    raw.require("norm_topk_prob", False)
    limited = raw.get("topk_method") == "group_limited_greedy"
    routing = RoutingSpec(
        raw.positive("n_routed_experts", 64),
        raw.positive("num_experts_per_tok"),
        scale=raw.above_zero("routed_scaling_factor", 1.0),
        num_groups=raw.positive("n_group") if limited else 1,
        top_groups=raw.positive("topk_group") if limited else 1,
    )
    inner = raw.positive("moe_intermediate_size", 1407)
    shared = _shared_inner(raw, inner, 2)
    return _decoder(raw, MoESpec(routing, inner, shared_inner=shared, float32_router=True), dense=0)


def _deepseek_v3(raw: RawConfig) -> DecoderSpec:
    raw.require("scoring_func", "sigmoid")
    raw.require("topk_method", "noaux_tc")
    routing = RoutingSpec(
        raw.positive("n_routed_experts", 256),
        raw.positive("num_experts_per_tok", 8),
        "sigmoid",
        renormalize=raw.flag("norm_topk_prob", True),
        scale=raw.above_zero("routed_scaling_factor", 2.5),
        num_groups=raw.positive("n_group", 8),
        top_groups=raw.positive("topk_group", 4),
    )
    inner = raw.positive("moe_intermediate_size", 2048)
    shared = _shared_inner(raw, inner, 1)
    experts = MoESpec(routing, inner, shared_inner=shared, float32_router=True, correction_bias=True)
    return _decoder(raw, experts, dense=3, prediction_layers=raw.count("num_nextn_predict_layers", 0))


_NAMES = Names(moe=MoENames(shared="mlp.shared_experts"))
DEEPSEEK_V2 = Family(_deepseek_v2, _NAMES)
DEEPSEEK_V3 = Family(_deepseek_v3, _NAMES)
