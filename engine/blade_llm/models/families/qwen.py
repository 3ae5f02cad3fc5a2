"""Qwen2 and Qwen2.5 (Qwen team, arXiv 2407.10671, 2412.15115): a bias on queries, keys and values, always; windows from
some layer on, if the configuration asks for them. Qwen3 (arXiv 2505.09388): normalised heads, biases as configured."""

from __future__ import annotations

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.decoder import DecoderSpec


def _windows(raw: RawConfig) -> tuple[int, ...]:
    """Layers from ``max_window_layers`` on have the window, unless ``layer_types`` says otherwise."""
    count = raw.positive("num_hidden_layers")
    window = raw.positive("sliding_window", 4096) if raw.flag("use_sliding_window") else 0
    if "layer_types" in raw.fields:
        return raw.layer_windows(window)
    first = raw.positive("max_window_layers", 28) if raw.get("max_window_layers") != 0 else 0
    return tuple(window if index >= first else 0 for index in range(count))


def _qwen2(raw: RawConfig) -> DecoderSpec:
    return llama_like(raw, qkv_bias=True, windows=_windows(raw))


def _qwen3(raw: RawConfig) -> DecoderSpec:
    bias = raw.flag("attention_bias")
    heads = raw.positive("num_attention_heads")
    if "head_dim" not in raw.fields:
        raw = RawConfig({**raw.fields, "head_dim": 128})
    return llama_like(raw, qkv_bias=bias, output_bias=bias, head_norm=True, windows=_windows(raw), kv_heads=heads)


QWEN2 = Family(_qwen2, Names())
QWEN3 = Family(_qwen3, Names())
