"""Reasoning in outputs: how each model family marks it, by name, and the parser for it."""

from __future__ import annotations

from typing import Final

from blade_llm.text.reasoning.think import ReasoningForm as ReasoningForm
from blade_llm.text.reasoning.think import ThinkParser as ThinkParser

QWEN3: Final = ReasoningForm(name="qwen3")
"""Thinks where the output begins with ``<think>``, or the prompt ends with it."""
DEEPSEEK_R1: Final = ReasoningForm(name="deepseek_r1", always=True)
"""Always thinks; older templates do not say so."""
DEEPSEEK_V3: Final = ReasoningForm(name="deepseek_v3", gap="")
"""DeepSeek-V3.1: thinks where the prompt ends with ``<think>``."""
GLM45: Final = ReasoningForm(name="glm45", before="\n", gap="\n")
MISTRAL: Final = ReasoningForm(name="mistral", begin="[THINK]", end="[/THINK]", gap="")
"""Magistral."""
REASONING_PARSERS: Final = {form.name: form for form in (QWEN3, DEEPSEEK_R1, DEEPSEEK_V3, GLM45, MISTRAL)}
"""Reasoning forms by value of ``--reasoning_parser``."""


def detect_reasoning_parser(template: str) -> ReasoningForm | None:
    """The form that a chat template shows; None: its model does not think."""
    if MISTRAL.end in template:
        return MISTRAL
    if QWEN3.begin not in template and QWEN3.end not in template:
        return None
    if "<arg_key>" in template:
        return GLM45
    if "\uff5cAssistant\uff5c" in template:
        return DEEPSEEK_V3 if "thinking" in template else DEEPSEEK_R1
    return QWEN3
