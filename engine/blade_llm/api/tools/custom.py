"""Freeform tools: a text in place of arguments. Models are taught functions, so they are shown one with the argument
``input``, and :mod:`blade_llm.text.tool_parsers.freeform` unwraps it again."""

from __future__ import annotations

from typing import Any, Final

from blade_llm.api.common.errors import bad_request
from blade_llm.api.tools.requests import CustomDefinition, FunctionDefinition
from blade_llm.text.tool_parsers.freeform import INPUT

_SYNTAXES: Final = ("lark", "regex")


def as_function(tool: CustomDefinition, where: str) -> FunctionDefinition:
    """What the model is shown. A text held to a regular expression makes calls strict; a Lark grammar is described.

    Raises :class:`ApiError` 400 for a format that is none.
    """
    syntax, definition = _grammar(tool.format, where)
    text: dict[str, Any] = {"type": "string"}
    described = [tool.description] if tool.description else []
    if syntax == "regex":
        text["pattern"] = f"^(?:{definition})$"
    elif syntax == "lark":
        described.append(f"{INPUT} has to follow this Lark grammar:\n{definition.strip()}")
    return FunctionDefinition(
        name=tool.name,
        description="\n\n".join(described) or None,
        parameters={
            "type": "object",
            "properties": {INPUT: text},
            "required": [INPUT],
            "additionalProperties": False,
        },
        strict=True if syntax == "regex" else None,
    )


def has_unenforced_format(tool: CustomDefinition) -> bool:
    """Whether its grammar is only described to the model."""
    found = tool.format or {}
    return found.get("type") == "grammar" and _inner(found).get("syntax") == "lark"


def _inner(given: dict[str, Any]) -> dict[str, Any]:
    """Where the grammar stands: in an object of its own in chats, beside the type in responses."""
    grammar = given.get("grammar", given)
    return grammar if isinstance(grammar, dict) else {}


def _grammar(given: dict[str, Any] | None, where: str) -> tuple[str, str]:
    """Syntax and definition; empty for any text."""
    if given is None or given.get("type") == "text":
        return "", ""
    inner = _inner(given)
    syntax, definition = inner.get("syntax"), inner.get("definition")
    if given.get("type") != "grammar" or syntax not in _SYNTAXES or not isinstance(definition, str):
        expected = '{"type": "text"}, or "grammar" with syntax, lark or regex, and definition'
        raise bad_request(f"{where}.format must be {expected}", "tools")
    return str(syntax), definition
