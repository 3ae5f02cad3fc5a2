"""What the schema of a function says of one argument, for forms of calls that write values without quotes.

The reader and the grammar of guided calls both ask here, so that what the grammar lets through is read as it was meant.
"""

from __future__ import annotations

from typing import Any, Final

_DEPTH: Final = 16
"""References and combinations that are followed into each other."""
_JSON_TYPES: Final = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}


def argument_schema(parameters: Any, key: str) -> Any:
    """The schema of the argument ``key``; None: it has none. ``parameters`` may be no schema at all."""
    parameters = _target(parameters, parameters, _DEPTH)
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if isinstance(properties, dict) and key in properties:
        return properties[key]
    others = parameters.get("additionalProperties") if isinstance(parameters, dict) else None
    return others if isinstance(others, dict) and others else None


def kinds(schema: Any, root: Any, depth: int = _DEPTH) -> frozenset[str] | None:
    """The JSON types of values that follow ``schema`` (``number`` also for integers). None: any, as far as one sees.

    Args:
        root: the schema that references begin in.
    """
    if not isinstance(schema, dict) or depth == 0:
        return None
    found: frozenset[str] | None = None
    if "$ref" in schema:
        found = kinds(resolved(root, schema["$ref"]), root, depth - 1)
    names = schema.get("type")
    if isinstance(names, str):
        names = [names]
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        found = _both(found, frozenset("number" if name == "integer" else name for name in names))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        found = _both(found, frozenset(_JSON_TYPES.get(type(value), "object") for value in values))
    for keyword in ("anyOf", "oneOf"):
        if isinstance(cases := schema.get(keyword), list) and cases:
            of_cases = [kinds(case, root, depth - 1) for case in cases]
            if None not in of_cases:
                found = _both(found, frozenset[str]().union(*(each for each in of_cases if each is not None)))
    if isinstance(parts := schema.get("allOf"), list):
        for part in parts:
            found = _both(found, kinds(part, root, depth - 1))
    return found


def resolved(root: Any, reference: Any) -> Any:
    """The part of ``root`` that a reference ``#/…`` names; None: there is none."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found = root
    for step in reference.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return None
    return found


def _target(schema: Any, root: Any, depth: int) -> Any:
    if depth and isinstance(schema, dict) and "properties" not in schema and "$ref" in schema:
        return _target(resolved(root, schema["$ref"]), root, depth - 1)
    return schema


def _both(first: frozenset[str] | None, second: frozenset[str] | None) -> frozenset[str] | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second
