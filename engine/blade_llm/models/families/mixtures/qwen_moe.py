"""Qwen1.5-MoE and Qwen2-MoE (Qwen team, arXiv 2407.10671): experts and a shared one behind a gate. Qwen3-MoE (arXiv
2505.09388): normalised heads, experts alone. Some layers may have a plain MLP."""

from __future__ import annotations

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.families.mixtures.with_experts import with_experts
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.moe import MoESpec, RoutingSpec


def _sparse_layers(raw: RawConfig) -> frozenset[int]:
    """Every ``decoder_sparse_step``-th layer, but those of ``mlp_only_layers``."""
    count, step = raw.positive("num_hidden_layers"), raw.positive("decoder_sparse_step", 1)
    dense = raw.get("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(type(index) is int and 0 <= index < count for index in dense):
        raise ValueError(f"'mlp_only_layers' must be a list of layers from 0 to {count - 1}, not {dense!r}")
    return frozenset(index for index in range(count) if (index + 1) % step == 0 and index not in dense)


def _routing(raw: RawConfig, experts: int, top_k: int) -> RoutingSpec:
    count = raw.positive("num_experts", raw.positive("num_local_experts", experts))
    return RoutingSpec(count, raw.positive("num_experts_per_tok", top_k), renormalize=raw.flag("norm_topk_prob"))


def _qwen2_moe(raw: RawConfig) -> DecoderSpec:
    count = raw.positive("num_hidden_layers")
    window = raw.positive("sliding_window", 4096) if raw.flag("use_sliding_window") else 0
    if "layer_types" in raw.fields:
        windows = raw.layer_windows(window)
    else:  # as transformers fills it in: every other layer, up to one
        last = 0 if raw.get("max_window_layers") == 0 else raw.positive("max_window_layers", 28)
        windows = tuple(window if index % 2 == 0 and index < last else 0 for index in range(count))
    spec = llama_like(raw, qkv_bias=raw.flag("qkv_bias", True), windows=windows, kv_heads=16)
    experts = MoESpec(
        _routing(raw, 60, 4),
        raw.positive("moe_intermediate_size", 1408),
        shared_inner=raw.positive("shared_expert_intermediate_size", 5632),
        shared_gate=True,
    )
    return with_experts(spec, experts, _sparse_layers(raw))


def _qwen3_moe(raw: RawConfig) -> DecoderSpec:
    bias = raw.flag("attention_bias")
    window = raw.positive("sliding_window", 4096) if raw.flag("use_sliding_window") else 0
    windows = [window] * raw.positive("num_hidden_layers")
    spec = llama_like(raw, qkv_bias=bias, output_bias=bias, head_norm=True, windows=windows, kv_heads=4)
    experts = MoESpec(_routing(raw, 128, 8), raw.positive("moe_intermediate_size", 768))
    return with_experts(spec, experts, _sparse_layers(raw))


QWEN2_MOE = Family(_qwen2_moe, Names())
QWEN3_MOE = Family(_qwen3_moe, Names(prediction=("mtp.",)))
