"""Tool calls in outputs: one form for each way in which models write them, by name, and a parser for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from blade_llm.text.tool_parsers.calls import CallForm as CallForm
from blade_llm.text.tool_parsers.calls import CallParser as CallParser
from blade_llm.text.tool_parsers.calls import Parser as Parser
from blade_llm.text.tool_parsers.named import DEEPSEEK_MARKERS, MISTRAL_MARKERS, DeepSeekReader, MistralReader
from blade_llm.text.tool_parsers.pythonic import PYTHONIC_MARKERS, PythonicReader
from blade_llm.text.tool_parsers.tagged import Glm45Reader, Qwen3CoderReader

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
MISTRAL: Final = CallForm(name="mistral", reader=MistralReader, special=MISTRAL_MARKERS, written="list")
"""Mistral, Mixtral, Ministral."""
_MISTRAL_NAMED: Final = replace(MISTRAL, written="named")
"""Since Mistral Small 3.1: Devstral, Magistral."""
DEEPSEEK_V3: Final = CallForm(name="deepseek_v3", reader=DeepSeekReader, special=DEEPSEEK_MARKERS, written="fenced")
"""DeepSeek-V3 and R1; what V3.1 writes is read, too."""
DEEPSEEK_V31: Final = replace(DEEPSEEK_V3, name="deepseek_v31", written="named")
QWEN3_CODER: Final = CallForm(
    name="qwen3_coder", reader=Qwen3CoderReader, special=("<tool_call>", "</tool_call>"), written="parameters"
)
"""Qwen3-Coder."""
GLM45: Final = CallForm(
    name="glm45",
    reader=Glm45Reader,
    special=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    written="pairs",
)
"""GLM-4.5 and later."""
PYTHONIC: Final = CallForm(name="pythonic", reader=PythonicReader, special=PYTHONIC_MARKERS, written="python")
"""Llama 3.2 of 1B and 3B, ToolACE, Llama 4."""
NO_PARSER: Final = "none"
"""In place of a parser's name, of tools or of reasoning: switches off one that the chat template would call for."""
TOOL_PARSERS: Final = {
    form.name: form for form in (HERMES, LLAMA3_JSON, MISTRAL, DEEPSEEK_V3, DEEPSEEK_V31, QWEN3_CODER, GLM45, PYTHONIC)
}
"""Call forms by value of ``--tool_call_parser``."""


def detect_tool_parser(template: str) -> CallForm | None:
    """The form that a chat template teaches its model; None: none, or one that is not known."""
    if "<function=" in template:
        return QWEN3_CODER if "<parameter=" in template else None
    if "<arg_key>" in template:
        return GLM45
    if HERMES.begin in template:
        return HERMES
    if LLAMA3_JSON.begin in template or '"parameters": dictionary of argument' in template:
        return LLAMA3_JSON
    if MISTRAL_MARKERS[0] in template:
        return as_taught(MISTRAL, template)
    if DEEPSEEK_MARKERS[2] in template:
        return DEEPSEEK_V3 if "```json" in template else DEEPSEEK_V31
    if "<|python_start|>" in template or "[func_name1(params_name1=" in template:
        return PYTHONIC
    return None


def as_taught(form: CallForm, template: str) -> CallForm:
    """``form`` as the chat template shows it, where models of one family are taught different ones."""
    return _MISTRAL_NAMED if form is MISTRAL and MISTRAL_MARKERS[2] in template else form
