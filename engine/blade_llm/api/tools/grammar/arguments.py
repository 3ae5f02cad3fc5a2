"""The arguments of one function, for forms of calls that write each argument by itself.

A schema of parameters is taken apart here: what it says of arguments one by one is followed, what it says of all of
them together is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from blade_llm.sampling.guided.json_schema.objects import CLOSED
from blade_llm.sampling.guided.schema import ANNOTATIONS
from blade_llm.text.tool_parsers.argument_schemas import resolved

_TAKEN: Final = (
    frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema", "$id"})
    | ANNOTATIONS
)


class ArgumentsError(ValueError):
    """The form of the calls cannot be held to the parameters of a function; the message says which part and why.

    Attributes:
        function: its name.
    """

    def __init__(self, message: str, function: str = "") -> None:
        super().__init__(message)
        self.function = function


@dataclass(frozen=True, slots=True)
class Argument:
    key: str
    schema: Any
    """True: anything."""
    required: bool

    @property
    def place(self) -> str:
        """A JSON pointer, for errors."""
        return f"#/properties/{self.key.replace('~', '~0').replace('/', '~1')}"


@dataclass(frozen=True, slots=True)
class Arguments:
    listed: tuple[Argument, ...]
    """In the order in which they are written."""
    others: Any
    """The schema of arguments that are not listed; False: there are none."""
    root: dict[str, Any]
    """What references begin in."""


def read_arguments(schema: dict[str, Any]) -> Arguments:
    """The arguments that the parameters ``schema`` describe, which validation has found to be a sound schema.

    Raises :class:`ArgumentsError`.
    """
    root, place = schema, "#"
    if "properties" not in schema and isinstance(schema.get("$ref"), str) and not _taken_away(schema, "$ref"):
        place = schema["$ref"]
        found = resolved(root, place)
        if isinstance(found, dict):
            schema = {"additionalProperties": schema.get("additionalProperties", True), **found}
    properties = schema.get("properties", {})
    required = dict.fromkeys(schema.get("required", ()))
    others = schema.get("additionalProperties", True)
    for keyword in _taken_away(schema):
        if keyword == "minProperties" and schema[keyword] <= len(required):
            continue
        if keyword == "maxProperties" and others is False and schema[keyword] >= len(properties):
            continue
        if keyword == "maxProperties" and schema[keyword] == 0 and not required:
            properties, others = {}, False
            continue
        raise ArgumentsError(
            f"{place}/{keyword}: not supported for all arguments together, as this model writes each by itself; "
            "describe each under properties"
        )
    if others is False and (missing := [key for key in required if key not in properties]):
        raise ArgumentsError(f"{place}/required: {missing[0]!r} is not among the properties; add it there")
    listed = [Argument(key, found, key in required) for key, found in properties.items() if found is not False]
    listed += [Argument(key, others, True) for key in required if key not in properties]
    if impossible := [key for key in required if properties.get(key) is False]:
        raise ArgumentsError(f"{place}/properties/{impossible[0]}: required, but false")
    return Arguments(tuple(listed), others, root)


def _taken_away(schema: dict[str, Any], *known: str) -> list[str]:
    """Keywords that are neither followed here nor without effect."""
    return [key for key in schema if key not in _TAKEN and key not in known and not key.startswith("x-")]


def embedded(schema: Any, root: dict[str, Any], place: str) -> Any:
    """``schema`` by itself: with those definitions of ``root`` that it refers to."""
    needed: dict[str, dict[str, Any]] = {}
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        if not isinstance(value, dict):
            continue
        waiting += value.values()
        reference = value.get("$ref")
        if not isinstance(reference, str):
            continue
        where, _, rest = reference.removeprefix("#/").partition("/")
        key = rest.partition("/")[0].replace("~1", "/").replace("~0", "~")
        if where not in ("$defs", "definitions") or resolved(root, reference) is None:
            raise ArgumentsError(
                f"{place}: the reference {reference!r} leads out of the argument; refer to schemas in $defs"
            )
        if key not in needed.setdefault(where, {}):
            needed[where][key] = root[where][key]
            waiting.append(root[where][key])
    closed = {CLOSED: True} if root.get(CLOSED) is True and isinstance(schema, dict) else {}
    return {**closed, **schema, **needed} if needed or closed else schema
