"""What one request offers its model to call, checked: the same for every route that knows tools."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from blade_llm.api.common.errors import bad_request
from blade_llm.api.tools.requests import FunctionDefinition, NamedToolChoice, ToolChoice
from blade_llm.sampling.guided.json_schema.objects import CLOSED

MAX_TOOLS: Final = 128
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OPENING: Final = frozenset(
    {
        "additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties",
        "maxProperties", "allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef",
    }
)  # fmt: skip
"""Keywords that speak of arguments other than those in ``properties``, or may do so."""
_NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The functions of a request that may call any."""

    functions: tuple[FunctionDefinition, ...]
    mode: Literal["auto", "required", "named"]
    name: str | None = None
    """The one to call, in mode ``named``."""
    parallel: bool = True
    """An output may hold several calls."""
    closed: bool = True
    """Objects of arguments take no keys that they do not list."""
    places: tuple[int, ...] = ()
    """Where each of the functions stands in ``tools``; empty: as they stand here."""
    freeform: frozenset[str] = frozenset()
    """Names of those that take a text."""

    def place(self, index: int) -> int:
        """Where in the request's ``tools`` a function stands."""
        return self.places[index] if self.places else index

    @property
    def allowed(self) -> list[FunctionDefinition]:
        """Those that this output may call."""
        return [function for function in self.functions if self.name in (None, function.name)]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.allowed)

    @property
    def single(self) -> bool:
        """An output holds one call at most."""
        return not self.parallel or self.mode == "named"

    @property
    def guided(self) -> bool:
        """Whether the request promises something of its calls that a model alone does not keep."""
        return self.mode != "auto" or self.single or any(function.strict for function in self.functions)

    def schema(self, function: FunctionDefinition) -> dict[str, Any]:
        """What guided arguments of ``function`` have to follow."""
        if self.mode == "auto" and not function.strict:
            return {"type": "object"}
        schema = {"type": "object", **(function.parameters or _NO_PARAMETERS)}
        return _closed({CLOSED: True, **schema}) if self.closed and schema.get(CLOSED) is not False else schema


def read_tools(
    functions: Sequence[FunctionDefinition],
    choice: ToolChoice | str | None,
    *,
    parallel: bool = True,
    places: Sequence[int] = (),
    freeform: Collection[str] = (),
) -> ToolUse | None:
    """The request's tools; None when it has none, or none may be called.

    Args:
        choice: ``none``, ``auto`` (the default), ``required``, or the function to call, as OpenAI's chat API writes it.
        places: where each function stands in the request.
        freeform: names of those that take a text.

    Raises :class:`ApiError` 400 that names ``tools`` or ``tool_choice``.
    """
    if not functions:
        if choice not in (None, "none", "auto"):
            raise bad_request("tool_choice asks for a call, but there are no tools; add tools", "tool_choice")
        return None
    if len(functions) > MAX_TOOLS:
        raise bad_request(f"tools holds {len(functions)} functions; send at most {MAX_TOOLS}", "tools")
    seen: set[str] = set()
    for index, function in enumerate(functions):
        _check(function, f"tools[{places[index] if places else index}]", seen)
    name = _named(choice)
    if name is not None and name not in seen:
        raise bad_request(f"tool_choice names {name!r}, which is not among the tools", "tool_choice")
    if choice == "none":
        return None
    return ToolUse(
        functions=tuple(functions),
        mode="named" if name is not None else "required" if choice == "required" else "auto",
        name=name,
        parallel=parallel,
        places=tuple(places),
        freeform=frozenset(freeform),
    )


def _named(choice: ToolChoice | str | None) -> str | None:
    """The one function to call."""
    if not isinstance(choice, NamedToolChoice):
        return None
    named = choice.function or choice.custom
    return None if named is None else named.name


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` without arguments that it does not name: a weak model might invent them until ``max_tokens``.

    Whatever follows it follows the original too. One that says itself what other arguments there are stays as it is.
    """
    properties = schema.get("properties")
    if properties is None or _OPENING.intersection(schema) or not set(schema.get("required", ())) <= set(properties):
        return schema
    return {**schema, "additionalProperties": False}


def template_arguments(use: ToolUse | None) -> dict[str, Any]:
    """``tools`` as chat templates expect them, with keys in the same order always: equal tools make equal prompts."""
    if use is None:
        return {}
    return {"tools": [{"type": "function", "function": _for_template(function)} for function in use.functions]}


def _check(function: FunctionDefinition, where: str, seen: set[str]) -> None:
    name = function.name
    if not _NAME.fullmatch(name):
        raise bad_request(f"{where}: the name must be 1 to 64 letters, digits, underscores and dashes", "tools")
    if name in seen:
        raise bad_request(f"{where}: there is another function of the name {name!r}; names must differ", "tools")
    seen.add(name)
    schema = function.parameters
    if schema is None:
        return
    where = f"{where} ({name}): parameters"
    if schema.get("type", "object") not in ("object", ["object"]):
        raise bad_request(f'{where} must be a JSON Schema with "type": "object"', "tools")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(found, (dict, bool)) for found in properties.values()):
        raise bad_request(f"{where}.properties must be an object of JSON Schemas", "tools")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
        raise bad_request(f"{where}.required must be a list of names", "tools")


def _for_template(function: FunctionDefinition) -> dict[str, Any]:
    described = {} if function.description is None else {"description": function.description}
    return {"name": function.name, **described, "parameters": function.parameters or _NO_PARAMETERS}
