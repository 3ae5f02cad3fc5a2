"""Qwen2 and Qwen2.5 (Qwen team, arXiv 2407.10671, 2412.15115): Llama's layers with a bias on queries, keys and values,
which :class:`~blade_llm.models.config.ModelConfig` states as ``attention_bias``."""

from __future__ import annotations

from blade_llm.models.llama import Llama


class Qwen2(Llama):
    """Qwen2 and Qwen2.5."""
