"""Reasoning in outputs: how each model family marks it, by name, and the parser for it."""

from __future__ import annotations

from typing import Final

from blade_llm.text.reasoning.think import ReasoningForm as ReasoningForm
from blade_llm.text.reasoning.think import ThinkParser as ThinkParser

QWEN3: Final = ReasoningForm(name="qwen3")
"""Thinks where the output begins with ``<think>``, or the prompt ends with it."""
DEEPSEEK_R1: Final = ReasoningForm(name="deepseek_r1", always=True)
"""Always thinks; older templates do not say so."""
REASONING_PARSERS: Final = {form.name: form for form in (QWEN3, DEEPSEEK_R1)}
"""Reasoning forms by value of ``--reasoning_parser``."""


def detect_reasoning_parser(template: str) -> ReasoningForm | None:
    """The form that a chat template shows; None: its model does not think."""
    if "</think>" not in template and "<think>" not in template:
        return None
    return DEEPSEEK_R1 if "\uff5cAssistant\uff5c" in template else QWEN3
