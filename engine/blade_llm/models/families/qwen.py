"""The first Qwen (Bai et al., arXiv 2309.16609): Qwen2's layers under other names. Qwen2 and Qwen2.5 (Qwen team, arXiv
2407.10671, 2412.15115): a bias on queries, keys and values, always; windows from some layer on, if the configuration
asks for them. Qwen3 (arXiv 2505.09388): normalised heads, biases as configured. MiMo (arXiv 2505.07608): Qwen2's
layers, and one for multi-token prediction."""

from __future__ import annotations

from typing import Any

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.decoder import DecoderSpec


def layer_windows(raw: RawConfig) -> tuple[int, ...]:
    """Layers from ``max_window_layers`` on have the window, unless ``layer_types`` says otherwise."""
    count = raw.positive("num_hidden_layers")
    window = raw.positive("sliding_window", 4096) if raw.flag("use_sliding_window") else 0
    if "layer_types" in raw.fields:
        return raw.layer_windows(window)
    first = raw.positive("max_window_layers", 28) if raw.get("max_window_layers") != 0 else 0
    return tuple(window if index >= first else 0 for index in range(count))


def _qwen2(raw: RawConfig) -> DecoderSpec:
    return llama_like(raw, qkv_bias=True, windows=layer_windows(raw))


def _qwen3(raw: RawConfig) -> DecoderSpec:
    bias = raw.flag("attention_bias")
    heads = raw.positive("num_attention_heads")
    if "head_dim" not in raw.fields:
        raw = RawConfig({**raw.fields, "head_dim": 128})
    return llama_like(raw, qkv_bias=bias, output_bias=bias, head_norm=True, windows=layer_windows(raw), kv_heads=heads)


def _qwen(raw: RawConfig) -> DecoderSpec:
    """Dynamic NTK and logn attention change nothing up to ``seq_length``, which is the longest that is served."""
    raw.require("no_bias", True)
    raw.require("rotary_pct", 1.0)
    inner = raw.positive("intermediate_size")
    if inner % 2:
        raise ValueError(f"intermediate_size {inner} is odd; it counts gate and up together")
    renamed: dict[str, Any] = {
        "rms_norm_eps": raw.get("layer_norm_epsilon", 1e-6),
        "rope_theta": raw.get("rotary_emb_base", 10_000),
        "head_dim": raw.get("kv_channels"),
        "max_position_embeddings": raw.positive("seq_length", raw.positive("max_position_embeddings", 2048)),
        "intermediate_size": inner // 2,
    }
    return llama_like(RawConfig({**raw.fields, **renamed}), qkv_bias=True)


QWEN = Family(
    _qwen,
    Names(
        embedding="transformer.wte",
        layer="transformer.h.{}",
        attention_norm="ln_1",
        qkv=("attn.c_attn",),
        output="attn.c_proj",
        mlp_norm="ln_2",
        up=("mlp.w2", "mlp.w1"),
        down="mlp.c_proj",
        final_norm="transformer.ln_f",
    ),
)
QWEN2 = Family(_qwen2, Names())
QWEN3 = Family(_qwen3, Names(prediction=("mtp.",)))
MIMO = Family(_qwen2, Names(prediction=("model.mtp_layers.",)))
