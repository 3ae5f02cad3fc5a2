"""JSON as guided answers write it: keys in the schema's order, ``", "`` and ``": "``, numbers without exponents."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from jsonschema import Draft202012Validator


def canonical(schema: Any, value: Any) -> str:
    """The one text of ``value``, which is valid under ``schema`` and holds no keys beyond its properties."""
    return _text(_Ordered(schema).of(schema, value))


class _Ordered:
    def __init__(self, root: Any) -> None:
        self._root = root

    def of(self, schema: Any, value: Any) -> Any:
        """``value`` with its keys in order."""
        if not isinstance(schema, dict):
            return value
        if schema.get("$ref") == "#":
            return self.of(self._root, value)
        if "$ref" in schema:
            (definition,) = self._root["$defs"].values()
            return self.of(definition, value)
        for case in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            if self._holds(case, value):
                return self.of(case, value)
        for constant in (*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])):
            if constant == value and isinstance(constant, bool) == isinstance(value, bool):
                return constant
        if isinstance(value, dict):
            properties: dict[str, Any] = {}
            for part in (*schema.get("allOf", ()), schema):
                for name, found in part.get("properties", {}).items():
                    if not isinstance(properties.get(name), dict):
                        properties[name] = found
            return {name: self.of(found, value[name]) for name, found in properties.items() if name in value}
        if isinstance(value, list):
            first = schema.get("prefixItems", [])
            rest = schema.get("items", True)
            return [self.of(first[index] if index < len(first) else rest, item) for index, item in enumerate(value)]
        return value

    def _holds(self, schema: Any, value: Any) -> bool:
        definitions = {"$defs": self._root["$defs"]} if "$defs" in self._root else {}
        wrapped = {"type": "array", "prefixItems": [schema], **definitions}
        return bool(Draft202012Validator(_without_root(wrapped)).is_valid([value]))


def _without_root(schema: Any) -> Any:
    """References to a root that is another here hold anything."""
    if isinstance(schema, dict):
        return True if schema.get("$ref") == "#" else {key: _without_root(part) for key, part in schema.items()}
    return [_without_root(part) for part in schema] if isinstance(schema, list) else schema


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: {_text(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        plain = format(Decimal(repr(value)), "f")
        plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
        return "0" if plain == "-0" else plain
    return json.dumps(value, ensure_ascii=False)
