"""Phi-3 and Phi-4 (Abdin et al., arXiv 2404.14219, 2412.08905): queries, keys and values in one matrix, gate and up in
another; longrope; partial rotation in some."""

from __future__ import annotations

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.rope_config import read_rope
from blade_llm.spec.decoder import DecoderSpec


def _phi3(raw: RawConfig) -> DecoderSpec:
    window = raw.positive("sliding_window") if "sliding_window" in raw.fields else 0
    windows = [window] * raw.positive("num_hidden_layers")
    return llama_like(raw, windows=windows, rope=read_rope(raw, raw.head_dim(), partial=True))


PHI3 = Family(_phi3, Names(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)))
