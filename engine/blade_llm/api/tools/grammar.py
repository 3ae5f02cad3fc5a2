"""Grammars of outputs that hold reasoning, calls and content, in llguidance's Lark syntax.

A grammar begins where the output begins, so a structure set for the content is put behind the reasoning, and calls
are written in the very form that the model was taught and the parser reads. Markers that are single tokens stand as
these tokens: no text can be mistaken for them.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import llguidance

from blade_llm.api.tools.use import ToolUse
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.text import choices, literal, schema_of
from blade_llm.text.output_parser import OutputParsing
from blade_llm.text.reasoning import ReasoningForm
from blade_llm.text.tokenizer import Tokenizer
from blade_llm.text.tool_parsers import CallForm

_ANYTHING: Final = r"(.|\n)*"
_SPACE: Final = r"[ \t\r\n]*"
_ESCAPED_ASCII: Final = r"\\u00[2-7]"
"""A key or a name may be spelled with these."""
_AFTER_REASONING: Final = "\n\n"
"""Between ``</think>`` and the content, as Qwen3 and DeepSeek-R1 write it."""
_ASCII_CLASSES: Final = "dws"


def output_structure(
    content: GrammarSpec | None, parsing: OutputParsing, use: ToolUse | None, tokenizer: Tokenizer
) -> GrammarSpec | None:
    """The structure of whole outputs whose content follows ``content``; None: they are free."""
    grammar = _Grammar(tokenizer)
    if use is not None and parsing.calls is not None and (use.guided or content is not None):
        answer = grammar.calls(parsing.calls, use, content)
    elif content is not None and parsing.reasoning is not None:
        answer = grammar.structure(content)
    else:
        return content
    if parsing.reasoning is not None:
        answer = grammar.reasoning(parsing.reasoning, answer, inside=parsing.inside)
    return GrammarSpec("grammar", grammar.text(answer))


class _Grammar:
    """Rules as they are added. Each method returns an expression that stands for what it describes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rules: list[str] = []

    def text(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules, ""])

    def reasoning(self, form: ReasoningForm, answer: str, *, inside: bool) -> str:
        """``answer`` behind the reasoning, which only an output that begins inside has to have."""
        self._until("reasoning", form.end)
        self._rule("answer", answer)
        reasoning = f"reasoning {json.dumps(_AFTER_REASONING)}"
        return f"{reasoning} answer" if inside else f"({self._marker(form.begin)} {reasoning})? answer"

    def structure(self, content: GrammarSpec) -> str:
        """A structure as part of a larger one."""
        match content.kind:
            case "json":
                return _json(schema_of(content.value))
            case "regex":
                return f"/{llguidance.regex_to_lark(content.value, _ASCII_CLASSES)}/"
            case "choice":
                return "(" + " | ".join(map(literal, choices(content))) + ")"
            case "grammar":
                return f"%lark {{\n{content.value}\n}}"

    def calls(self, form: CallForm, use: ToolUse, content: GrammarSpec | None) -> str:
        """Calls of the functions that may be called and, where none has to be, other content."""
        functions = []
        for index, function in enumerate(use.allowed):
            head = ["{", '"name"', ": ", json.dumps(function.name), ", ", json.dumps(form.arguments_key), ": "]
            if not (form.begins_bare and content is not None):
                head = ["".join(head)]  # else in pieces: the content may begin with the same bracket
            self._rule(f"arguments_{index}", _json(use.schema(function)))
            self._rule(f"function_{index}", f'{" ".join(map(json.dumps, head))} arguments_{index} "}}"')
            functions.append(f"function_{index}")
        around = json.dumps(form.around)
        body = f"({' | '.join(functions)})"
        if form.end:
            body = f"{around} {body} {around} {self._marker(form.end)}"
        self._rule("body", body)
        self._rule("call", f"{'' if form.begins_bare else self._marker(form.begin)} body")
        calls = "call" if use.single else f"call ({json.dumps(form.separator + form.around)} call)*"
        if use.mode != "auto":
            return calls
        self._rule("calls", calls)
        if content is not None:
            self._rule("content", self.structure(content))
            return "(calls | content)"
        return self._between_text(form, use)

    def _between_text(self, form: CallForm, use: ToolUse) -> str:
        """Calls with any text around."""
        if form.begins_bare:
            # what begins like a call is one, of a function that exists; and the parser takes any object with such a
            # function's name for a call, whatever its order and white space
            key = rf'"name"{_SPACE}:{_SPACE}"'
            named = rf'{key}({"|".join(map(_literal, sorted(use.names)))})"'
            self._free_text(
                "TEXT",
                rf"{_SPACE}\{{{_SPACE}{key}{_ANYTHING}",
                rf"{_SPACE}\{{{_ANYTHING}({named}|{_ESCAPED_ASCII}){_ANYTHING}",
                _ANYTHING + _literal(form.begin) + _ANYTHING,
            )
            return "(calls | TEXT)"
        single = use.single
        self._free_text("TEXT", _ANYTHING + _literal(form.begin) + _ANYTHING)
        if form.begin in self._tokenizer.added_ids:
            return "TEXT call?" if single else "TEXT (call TEXT)*"
        self._until("begun", form.begin)
        return "(begun body | TEXT)" if single else "(begun body)* TEXT"

    def _until(self, name: str, marker: str) -> None:
        """Any text, and the ``marker`` where it comes first."""
        if marker not in self._tokenizer.added_ids:
            self._rules.append(f"{name}[lazy]: /{_ANYTHING}{_literal(marker)}/")
            return
        text = f"{name.upper()}_TEXT"
        self._free_text(text, _ANYTHING + _literal(marker) + _ANYTHING)
        self._rule(name, f"{text} {self._marker(marker)}")

    def _free_text(self, name: str, *excluded: str) -> None:
        self._rules.append(f"{name}: /{_ANYTHING}/ " + " ".join(f"& ~/{expression}/" for expression in excluded))

    def _marker(self, text: str) -> str:
        token_id = self._tokenizer.added_ids.get(text)
        return json.dumps(text) if token_id is None else f"<[{token_id}]>"

    def _rule(self, name: str, expression: str) -> None:
        self._rules.append(f"{name}: {expression}")


def _json(schema: Any) -> str:
    """A value that follows ``schema``. Which draft that is written in is for the validation, not for llguidance."""
    read = {key: value for key, value in schema.items() if key != "$schema"} if isinstance(schema, dict) else {}
    return f"%json {json.dumps(read, ensure_ascii=False)}"


def _literal(text: str) -> str:
    """``text`` as part of a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/")
