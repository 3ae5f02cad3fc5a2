"""Strings that hold something else: ``contentEncoding`` and ``contentMediaType``, as patterns.

JSON Schema calls both annotations. Who writes them decodes the string, so outputs that can be decoded are the only
useful ones. JSON of any kind is no regular language: it is nested two levels at most, and where ``contentSchema`` says
what it is, as far as an expression can.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from blade_llm.sampling.guided.json_schema.formats import EXACT
from blade_llm.sampling.guided.json_schema.objects import Resolve
from blade_llm.sampling.guided.json_schema.steps import Steps

_ENCODINGS: Final = {"base64": "base64", "base64url": "base64url"}
_LEVELS: Final = 2
_DEPTH: Final = 4
_LONGEST: Final = 4_000
"""Characters of an expression; beyond, any JSON will do."""
_STRING: Final = r'"([^"\\\p{Cc}]|\\["\\/bfnrt])*"'
_INTEGER: Final = "-?(0|[1-9][0-9]{0,15})"
_NUMBER: Final = rf"{_INTEGER}(\.[0-9]{{1,15}})?"
_TYPES: Final = {"string": _STRING, "integer": _INTEGER, "number": _NUMBER, "boolean": "(true|false)", "null": "null"}
_PLAIN: Final = frozenset({"type", "title", "description", "default", "examples"})


def content_pattern(schema: dict[str, Any], resolve: Resolve, steps: Steps) -> str | None:
    """The pattern of strings that hold what ``schema`` says; None: any string."""
    if isinstance(name := schema.get("contentEncoding"), str) and name.lower() in _ENCODINGS:
        found: str = EXACT[_ENCODINGS[name.lower()]]["pattern"]
        return found
    if "contentEncoding" not in schema and schema.get("contentMediaType") == "application/json":
        expression = _Expressions(resolve, steps).of(schema.get("contentSchema", True), _DEPTH)
        if expression is None or len(expression) > _LONGEST:
            expression = _any(_LEVELS)
        return f"^({expression})$"
    return None


def _any(levels: int) -> str:
    scalar = f"{_STRING}|{_NUMBER}|true|false|null"
    if not levels:
        return f"({scalar})"
    inner = _any(levels - 1)
    return f"({scalar}|{_list(inner)}|{_some(f'{_STRING}: {inner}')})"


def _list(item: str) -> str:
    return rf"\[({item}(, {item})*)?\]"


def _some(pair: str) -> str:
    return rf"\{{({pair}(, {pair})*)?\}}"


class _Expressions:
    """Expressions of the JSON that follows a schema: fewer outputs than could be, never others."""

    def __init__(self, resolve: Resolve, steps: Steps) -> None:
        self._resolve = resolve
        self._steps = steps

    def of(self, schema: Any, depth: int) -> str | None:
        """None: not known, or too long. Nothing has checked ``schema``, which is an annotation."""
        found = self._of(schema, depth)
        return None if found is None or len(found) > _LONGEST else found

    def _of(self, schema: Any, depth: int) -> str | None:
        self._steps.take()
        if schema is True or schema == {}:
            return _any(_LEVELS)
        if not isinstance(schema, dict) or depth == 0:
            return None
        keywords = schema.keys() - _PLAIN
        if keywords == {"$ref"} and isinstance(schema["$ref"], str):
            return self.of(self._resolve(schema["$ref"]), depth - 1)
        name = schema.get("type")
        if keywords <= {"enum", "const"} and keywords:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            if not isinstance(values, list) or not values:
                return None
            return "(" + "|".join(re.escape(json.dumps(value, ensure_ascii=False)) for value in values) + ")"
        if keywords == {"anyOf"} and isinstance(schema["anyOf"], list) and schema["anyOf"]:
            cases = self._all(schema["anyOf"], depth)
            return None if cases is None else f"({'|'.join(cases)})"
        if not isinstance(name, str):
            return None
        if name in _TYPES and not keywords:
            return _TYPES[name]
        if name == "array" and keywords <= {"items", "uniqueItems"} and not schema.get("uniqueItems"):
            item = self.of(schema.get("items", True), depth - 1)
            return None if item is None else _list(item)
        if name == "object" and keywords <= {"properties", "required", "additionalProperties"}:
            return self._object(schema, depth)
        return None

    def _object(self, schema: dict[str, Any], depth: int) -> str | None:
        """Every listed property, in order; without any, those that ``additionalProperties`` speaks of."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            return None
        if not properties:
            value = self.of(schema.get("additionalProperties", True), depth - 1)
            return None if value is None else _some(f"{_STRING}: {value}")
        if not all(key in properties for key in required if isinstance(key, str)):
            return None
        values = self._all(list(properties.values()), depth)
        if values is None:
            return None
        names = (re.escape(json.dumps(key, ensure_ascii=False)) for key in properties)
        return r"\{" + ", ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True)) + r"\}"

    def _all(self, schemas: list[Any], depth: int) -> list[str] | None:
        """Of each the expression; None where one is not known, or all together are too long."""
        found, characters = [], 0
        for schema in schemas:
            expression = self.of(schema, depth - 1)
            characters += _LONGEST if expression is None else len(expression)
            if expression is None or characters > _LONGEST:
                return None
            found.append(expression)
        return found
