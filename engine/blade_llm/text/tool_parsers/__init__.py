"""Tool calls in outputs: one form for each way in which models write them, by name, and a parser for all of them."""

from __future__ import annotations

from typing import Final

from blade_llm.text.tool_parsers.calls import CallForm as CallForm
from blade_llm.text.tool_parsers.calls import CallParser as CallParser

HERMES: Final = CallForm(
    name="hermes",
    begin="<tool_call>",
    end="</tool_call>",
    arguments_key="arguments",
    around="\n",
)
"""Qwen2.5, Qwen3, Hermes 2 and 3."""
LLAMA3_JSON: Final = CallForm(
    name="llama3_json",
    begin="<|python_tag|>",
    separator=";",
    begins_bare=True,
    arguments_key="parameters",
    around=" ",
)
"""Llama 3.1, 3.2 and 3.3."""
TOOL_PARSERS: Final = {form.name: form for form in (HERMES, LLAMA3_JSON)}
"""Call forms by value of ``--tool_call_parser``."""


def detect_tool_parser(template: str) -> CallForm | None:
    """The form that a chat template teaches its model; None: none, or one that is not known."""
    if "<function=" in template:  # Qwen3-Coder: the same markers around something that is not JSON
        return None
    if HERMES.begin in template:
        return HERMES
    if LLAMA3_JSON.begin in template or '"parameters": dictionary of argument' in template:
        return LLAMA3_JSON
    return None
