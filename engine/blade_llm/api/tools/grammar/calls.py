"""Calls of the functions that may be called, in each form, and the text or content that may stand in their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from blade_llm.api.tools.grammar.arguments import ArgumentsError
from blade_llm.api.tools.grammar.pythonic import python_arguments
from blade_llm.api.tools.grammar.rules import ANYTHING, SPACE, Rules, either, escaped, json_value
from blade_llm.api.tools.grammar.tagged import pair_arguments, parameter_arguments
from blade_llm.api.tools.requests import FunctionDefinition
from blade_llm.api.tools.use import ToolUse
from blade_llm.sampling.guided.text import literal
from blade_llm.text.tool_parsers import CallForm
from blade_llm.text.tool_parsers.named import DEEPSEEK_MARKERS, MISTRAL_MARKERS
from blade_llm.text.tool_parsers.pythonic import PYTHONIC_MARKERS

_ESCAPED_ASCII: Final = r"\\u00[2-7]"
"""A key or a name may be spelled with these."""


@dataclass(frozen=True, slots=True)
class _Calls:
    """How calls stand in an output."""

    marker: str
    """What they begin with; empty: nothing, so that only an output may begin with them."""
    body: str
    """What follows the marker: one call, or all of them."""
    separator: str | None = None
    """Between one marked call and the next. None: the body has all that an output may hold."""
    text_between: bool = False
    """Text may stand between calls, and behind them."""
    no_text: tuple[str, ...] = ()
    """What text beside calls may not hold, as the reader takes it for a call: other markers, or for calls without a
    marker regular expressions of the whole text."""


def calls(rules: Rules, form: CallForm, use: ToolUse, content: str | None) -> str:
    """Calls and, where none has to be, the other ``content``: an expression, or None for any text."""
    found = _FORMS[form.written](rules, form, use, content)
    expression = found.body if not found.marker else f"{rules.marker(found.marker)} {found.body}"
    if found.separator is not None and not use.single:
        call = rules.rule("call", expression)
        expression = f"{call} ({found.separator} {call})*"
    if use.mode != "auto":
        return expression
    rules.rule("calls", expression)
    if content is not None:
        return f"(calls | {rules.rule('content', content)})"
    return _between_text(rules, found, use)


def _between_text(rules: Rules, found: _Calls, use: ToolUse) -> str:
    """Calls with any text around."""
    if not found.marker:
        rules.free_text("TEXT", *found.no_text)
        return "(calls | TEXT)"
    markers = (found.marker, *found.no_text)
    rules.free_text("TEXT", *(ANYTHING + escaped(marker) + ANYTHING for marker in markers))
    many = found.separator is not None and found.text_between and not use.single
    if rules.is_token(found.marker):
        call = f"{rules.marker(found.marker)} {found.body}"
        return f"TEXT ({call} TEXT)*" if many else "TEXT calls?"
    begun = rules.until("begun", found.marker, *found.no_text)
    if many:
        return f"({begun} {found.body})* TEXT"
    rest = ""
    if found.separator is not None and not use.single:
        rest = f"({found.separator} call)*"
    return f"({begun} {found.body} {rest} | TEXT)"


def _function_rules(use: ToolUse, write: Callable[[int, FunctionDefinition], str]) -> str:
    """One of the functions, as ``write`` writes the one with an index."""
    found: list[str] = []
    for index, function in enumerate(use.allowed):
        try:
            found.append(write(index, function))
        except ArgumentsError as error:
            raise ArgumentsError(str(error), function.name) from None
        except RecursionError:
            raise ArgumentsError("references are nested too deeply", function.name) from None
    return either(found)


def _objects(rules: Rules, form: CallForm, use: ToolUse, content: str | None) -> _Calls:
    """``{"name": …, "arguments": {…}}`` behind a marker or bare: Hermes's, Llama 3's."""

    def write(index: int, function: FunctionDefinition) -> str:
        head = ["{", '"name"', ": ", literal(function.name), ", ", literal(form.arguments_key), ": "]
        if not (form.begins_bare and content is not None):
            head = ["".join(head)]  # else in pieces: the content may begin with the same bracket
        rules.rule(f"arguments_{index}", json_value(use.schema(function)))
        return rules.rule(f"function_{index}", f'{" ".join(map(literal, head))} arguments_{index} "}}"')

    functions = _function_rules(use, write)
    if not form.begins_bare:
        around = literal(form.around)
        body = rules.rule("body", f"{around} {functions} {around} {rules.marker(form.end)}")
        return _Calls(form.begin, body, literal(form.around), text_between=True)
    call = rules.rule("one", functions)
    body = call if use.single else f"{call} ({literal(form.separator + form.around)} {call})*"
    # what begins like a call is one, of a function that exists; and the parser takes any object with such a function's
    # name for a call, whatever its order and white space
    key = rf'"name"{SPACE}:{SPACE}"'
    named = rf'{key}({"|".join(map(escaped, sorted(use.names)))})"'
    return _Calls("", body, no_text=(
        rf"{SPACE}\{{{SPACE}{key}{ANYTHING}",
        rf"{SPACE}\{{{ANYTHING}({named}|{_ESCAPED_ASCII}){ANYTHING}",
        ANYTHING + escaped(form.begin) + ANYTHING,
    ))  # fmt: skip


def _list(rules: Rules, form: CallForm, use: ToolUse, content: str | None) -> _Calls:
    """``[TOOL_CALLS][{"name": …, "arguments": {…}}]``: Mistral's, up to Small 3."""
    del content

    def write(index: int, function: FunctionDefinition) -> str:
        head = f'{{"name": {literal(function.name)}, "{form.arguments_key}": '
        return rules.rule(f"function_{index}", f'{literal(head)} {json_value(use.schema(function))} "}}"')

    call = rules.rule("one", _function_rules(use, write))
    rest = "" if use.single else f'(", " {call})*'
    # sentencepiece writes a space between the marker and what follows
    return _Calls(MISTRAL_MARKERS[0], rules.rule("body", f'" "? "[" {call} {rest} "]"'))


def _named(rules: Rules, form: CallForm, use: ToolUse, content: str | None) -> _Calls:
    """A name and the object of its arguments between markers: DeepSeek's and newer ones of Mistral's."""
    del content
    deepseek = DEEPSEEK_MARKERS[0] in form.special
    fenced = form.written == "fenced"

    def write(index: int, function: FunctionDefinition) -> str:
        arguments = json_value(use.schema(function))
        if not deepseek:
            call_id, args = map(rules.marker, MISTRAL_MARKERS[1:])
            expression = f"{literal(function.name)} ({call_id} /[a-zA-Z0-9]{{9}}/)? {args} {arguments}"
        elif fenced:
            separator = rules.marker(DEEPSEEK_MARKERS[4])
            head = literal(f"{function.name}\n```json\n")
            tail = literal("\n```")
            expression = f'"function" {separator} {head} {arguments} {tail}'
        else:
            expression = f"{literal(function.name)} {rules.marker(DEEPSEEK_MARKERS[4])} {arguments}"
        return rules.rule(f"function_{index}", expression)

    functions = _function_rules(use, write)
    if not deepseek:
        return _Calls(MISTRAL_MARKERS[0], rules.rule("body", functions), "")
    end, call_begin, call_end = map(rules.marker, DEEPSEEK_MARKERS[1:4])
    call = rules.rule("one", f"{call_begin} {functions} {call_end}")
    between = literal("\n") if fenced else ""
    body = rules.rule("body", f"{call} {'' if use.single else f'({between} {call})*'} {end}")
    return _Calls(DEEPSEEK_MARKERS[0], body, no_text=(DEEPSEEK_MARKERS[2],))


def _tagged(rules: Rules, form: CallForm, use: ToolUse, content: str | None) -> _Calls:
    """Tags around each argument: Qwen3-Coder's and GLM-4.5's."""
    del content
    coder = form.written == "parameters"

    def write(index: int, function: FunctionDefinition) -> str:
        schema = use.schema(function)
        if coder:
            head = literal(f"\n<function={function.name}>\n")
            return rules.rule(f"function_{index}", f"{head} {parameter_arguments(rules, index, schema)}")
        arguments = pair_arguments(rules, index, schema)
        return rules.rule(f"function_{index}", f'{literal(function.name)} "\\n"? {arguments}')

    functions = _function_rules(use, write)
    begin, end, *_ = form.special
    tail = literal("</function>\n") if coder else ""
    body = rules.rule("body", f"{functions} {tail} {rules.marker(end)}")
    return _Calls(begin, body, '"\\n"', text_between=True, no_text=("<function=",) if coder else ())


def _python(rules: Rules, form: CallForm, use: ToolUse, content: str | None) -> _Calls:
    """``[f(a=1), g()]``: Llama 3.2's and Llama 4's."""
    del form, content
    first: list[str] = []

    def write(index: int, function: FunctionDefinition) -> str:
        arguments = rules.rule(f"arguments_{index}", f'{python_arguments(rules, index, use.schema(function))} ")"')
        # in one piece with the bracket: text may begin with the same
        first.append(f"{literal(f'[{function.name}(')} {arguments}")
        return f"{literal(f'{function.name}(')} {arguments}"

    functions = _function_rules(use, write)
    rest = "" if use.single else f'(", " {rules.rule("another", functions)})*'
    calls = rules.rule("list", f'{either(first)} {rest} "]"')
    begin, _, end = PYTHONIC_MARKERS
    if rules.is_token(begin) and rules.is_token(end):
        calls = rules.rule("body", f"({calls} | {rules.marker(begin)} {calls} {rules.marker(end)})")
    names = "|".join(map(escaped, sorted(use.names)))
    marked = "|".join(map(escaped, PYTHONIC_MARKERS[:2]))
    return _Calls("", calls, no_text=(rf"{SPACE}({marked})?{SPACE}\[{SPACE}({names}){SPACE}\({ANYTHING}",))


_FORMS: Final = {
    "object": _objects,
    "list": _list,
    "named": _named,
    "fenced": _named,
    "parameters": _tagged,
    "pairs": _tagged,
    "python": _python,
}
