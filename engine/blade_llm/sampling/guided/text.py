"""Translates a grammar spec into llguidance's language.

JSON is written with ``", "`` and ``": "`` and no other white space: where more is allowed, a model may write spaces
until ``max_tokens``, and masks cannot stop it (docs/decisions/0008-whitespace-in-json.md).
"""

from __future__ import annotations

import json
from typing import Any, Final

import llguidance
import msgspec

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.json_schema.objects import CLOSED
from blade_llm.sampling.guided.json_schema.rewriting import rewritten
from blade_llm.sampling.guided.lark import with_json_options
from blade_llm.sampling.guided.prepare import OPTIONS, json_options, requested_options

_ASCII_CLASSES: Final = "dws"
"""``\\d``, ``\\w`` and ``\\s`` mean ASCII: an address of full-width digits is no address."""


def grammar_text(spec: GrammarSpec) -> str:
    """The grammar that llguidance compiles for ``spec``. Raises :class:`GrammarSpecError` when its text has the wrong
    form."""
    match spec.kind:
        case "json":
            return _json(spec.value)
        case "regex":
            return _lark(f"start: /{llguidance.regex_to_lark(spec.value, _ASCII_CLASSES)}/")
        case "choice":
            return _lark("start: " + " | ".join(map(literal, choices(spec))))
        case "grammar":
            return _lark(with_json_options(spec.value, _for_lark))


def with_closed_objects(spec: GrammarSpec) -> GrammarSpec:
    """``spec`` whose objects take no keys that they do not list, if it is a JSON Schema that does not say which.

    The text is not read: that is for the threads that compile it. A later keyword of the same name counts.
    """
    before, brace, rest = spec.value.partition("{")
    if spec.kind != "json" or not brace or before.strip():
        return spec
    comma = "" if rest.lstrip().startswith("}") else ", "
    return GrammarSpec("json", f'{{"{CLOSED}": true{comma}{rest}')


def choices(spec: GrammarSpec) -> list[str]:
    """The alternatives of a choice. Raises :class:`GrammarSpecError`."""
    try:
        found = msgspec.json.decode(spec.value, type=list[str])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise GrammarSpecError(f"a choice must be a JSON list of strings: {error}") from None
    if not found:
        raise GrammarSpecError("a choice needs at least one alternative")
    return found


def literal(text: str) -> str:
    """``text`` as a string of llguidance's Lark, which takes no DEL as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def schema_of(text: str) -> Any:
    """A JSON Schema's text, read strictly. Raises :class:`GrammarSpecError`."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise GrammarSpecError(f"not valid JSON: {error}") from None
    except RecursionError:
        raise GrammarSpecError("nested too deeply") from None


def _json(text: str) -> str:
    schema = schema_of(text)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarSpecError("a JSON Schema must be an object")
    # every schema is read as draft 2020-12: other drafts' keywords that differ are refused (schema.py)
    made = rewritten(schema)
    grammar: str = llguidance.LLMatcher.grammar_from_json_schema(
        json.dumps(made),
        overrides={**json_options(made), **requested_options(schema)},  # type: ignore[arg-type]
    )
    return grammar


def _for_lark(schema: dict[str, Any]) -> dict[str, Any]:
    made = rewritten(schema)
    return {**made, OPTIONS: {**json_options(made), **requested_options(schema)}}


def _lark(text: str) -> str:
    grammar: str = llguidance.LLMatcher.grammar_from_lark(text)
    return grammar
