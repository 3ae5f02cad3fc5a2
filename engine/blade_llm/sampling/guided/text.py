"""A structure in llguidance's language.

JSON is written with ``", "`` and ``": "`` and no other white space: where more is allowed, a model may write spaces
until ``max_tokens``, and masks cannot stop it (docs/decisions/0008-whitespace-in-json.md).
"""

from __future__ import annotations

import json
from typing import Any, Final

import llguidance
import msgspec

from blade_llm.sampling.guided.errors import StructureError
from blade_llm.sampling.guided.lark import with_json_options
from blade_llm.sampling.guided.prepare import json_options, prepared
from blade_llm.sampling.structure import Structure

_ASCII_CLASSES: Final = "dws"
"""``\\d``, ``\\w`` and ``\\s`` mean ASCII: an address of full-width digits is no address."""


def grammar_text(structure: Structure) -> str:
    """What llguidance compiles for ``structure``. Raises :class:`StructureError` when its text has the wrong form."""
    match structure.kind:
        case "json":
            return _json(structure.value)
        case "regex":
            return _lark(f"start: /{llguidance.regex_to_lark(structure.value, _ASCII_CLASSES)}/")
        case "choice":
            return _lark("start: " + " | ".join(map(literal, choices(structure))))
        case "grammar":
            return _lark(with_json_options(structure.value, _for_lark))


def choices(structure: Structure) -> list[str]:
    """The alternatives of a choice. Raises :class:`StructureError`."""
    try:
        found = msgspec.json.decode(structure.value, type=list[str])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise StructureError(f"a choice must be a JSON list of strings: {error}") from None
    if not found:
        raise StructureError("a choice needs at least one alternative")
    return found


def literal(text: str) -> str:
    """``text`` as a string of llguidance's Lark, which takes no DEL as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def schema_of(text: str) -> Any:
    """A JSON Schema's text, read strictly. Raises :class:`StructureError`."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise StructureError(f"not valid JSON: {error}") from None
    except RecursionError:
        raise StructureError("nested too deeply") from None


def _json(text: str) -> str:
    schema = schema_of(text)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise StructureError("a JSON Schema must be an object")
    # every schema is read as draft 2020-12: other drafts' keywords that differ are refused (schema.py)
    read = {key: value for key, value in schema.items() if key != "$schema"}
    grammar: str = llguidance.LLMatcher.grammar_from_json_schema(
        json.dumps(prepared(read)),
        overrides=json_options(read),  # type: ignore[arg-type]
    )
    return grammar


def _for_lark(schema: dict[str, Any]) -> dict[str, Any]:
    return {**prepared(schema), "x-guidance": json_options(schema)}


def _lark(text: str) -> str:
    grammar: str = llguidance.LLMatcher.grammar_from_lark(text)
    return grammar
