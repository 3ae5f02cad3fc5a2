"""Outputs as a whole: reasoning, then calls, content in a structure, or both."""

from __future__ import annotations

from typing import Final

import llguidance

from blade_llm.api.tools.grammar.calls import calls
from blade_llm.api.tools.grammar.rules import Rules, json_value
from blade_llm.api.tools.use import ToolUse
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.text import choices, literal, schema_of
from blade_llm.text.output_parser import OutputParsing
from blade_llm.text.reasoning import ReasoningForm
from blade_llm.text.tokenizer import Tokenizer

_ASCII_CLASSES: Final = "dws"


def output_structure(
    content: GrammarSpec | None, parsing: OutputParsing, use: ToolUse | None, tokenizer: Tokenizer
) -> GrammarSpec | None:
    """The structure of whole outputs whose content follows ``content``; None: they are free.

    Raises :class:`~blade_llm.api.tools.grammar.arguments.ArgumentsError` for arguments that the form of the calls
    cannot be held to.
    """
    rules = Rules(tokenizer)
    if use is not None and parsing.calls is not None and (use.guided or content is not None):
        answer = calls(rules, parsing.calls, use, None if content is None else _structure(content))
    elif content is not None and parsing.reasoning is not None:
        answer = _structure(content)
    else:
        return content
    if parsing.reasoning is not None:
        answer = _reasoning(rules, parsing.reasoning, answer, inside=parsing.inside)
    return GrammarSpec("grammar", rules.text(answer))


def _reasoning(rules: Rules, form: ReasoningForm, answer: str, *, inside: bool) -> str:
    """``answer`` behind the reasoning, which only an output that begins inside has to have."""
    rules.rule("answer", answer)
    reasoning = f"{rules.until('reasoning', form.end)} {literal(form.gap) if form.gap else ''}"
    before = f"{literal(form.before)}? " if form.before else ""
    return f"{reasoning} answer" if inside else f"({before}{rules.marker(form.begin)} {reasoning})? answer"


def _structure(content: GrammarSpec) -> str:
    """A structure as part of a larger one."""
    match content.kind:
        case "json":
            return json_value(schema_of(content.value))
        case "regex":
            return f"/{llguidance.regex_to_lark(content.value, _ASCII_CLASSES)}/"
        case "choice":
            return "(" + " | ".join(map(literal, choices(content))) + ")"
        case "grammar":
            return f"%lark {{\n{content.value}\n}}"
