"""Mistral 7B and its successors (Jiang et al., arXiv 2310.06825): Llama's layers, each with a sliding window where the
configuration has one."""

from __future__ import annotations

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.decoder import DecoderSpec


def _mistral(raw: RawConfig) -> DecoderSpec:
    window = 0 if "sliding_window" in raw.nulls else raw.positive("sliding_window", 4096)
    return llama_like(raw, windows=[window] * raw.positive("num_hidden_layers"))


MISTRAL = Family(_mistral, Names())
