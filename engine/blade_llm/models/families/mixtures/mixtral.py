"""Mixtral (Jiang et al., arXiv 2401.04088): Mistral's layers with experts in place of the MLP."""

from __future__ import annotations

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.families.mixtures.with_experts import with_experts
from blade_llm.models.layer_names.moe import MoENames
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.rope_config import read_rope
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.moe import MoESpec, RoutingSpec


def _mixtral(raw: RawConfig) -> DecoderSpec:
    raw = RawConfig({"rms_norm_eps": 1e-5, **raw.fields})
    window = raw.positive("sliding_window") if "sliding_window" in raw.fields else 0
    rope = read_rope(raw, raw.head_dim(), default_theta=1e6)
    spec = llama_like(raw, windows=[window] * raw.positive("num_hidden_layers"), rope=rope)
    experts, top_k = raw.positive("num_local_experts", 8), raw.positive("num_experts_per_tok", 2)
    return with_experts(spec, MoESpec(RoutingSpec(experts, top_k, renormalize=True), raw.positive("intermediate_size")))


MIXTRAL = Family(
    _mixtral,
    Names(
        moe=MoENames(router="block_sparse_moe.gate", experts="block_sparse_moe.experts.{}", up=("w1", "w3"), down="w2")
    ),
)
