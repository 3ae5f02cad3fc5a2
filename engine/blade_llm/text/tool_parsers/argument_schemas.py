"""What the schema of a function says of one argument, for forms of calls that write values without quotes.

The reader and the grammar of guided calls both ask here, so that what the grammar lets through is read as it was meant.
"""

from __future__ import annotations

from typing import Any, Final

_DEPTH: Final = 16
"""References and combinations that are followed into each other."""
_MOST_STEPS: Final = 1_000
_VALUES_A_STEP: Final = 64
_LONGEST_REFERENCE: Final = 8_192
_MOST_NAMES: Final = 64
"""In a reference."""
_JSON_TYPES: Final = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}


class TooManySteps(Exception):
    """Schemas that refer to each other several times are as many as their combinations."""


class Steps:
    """How much of schemas may be looked at: they are a client's, and references multiply them.

    Args:
        most: schemas, or as much work.
    """

    def __init__(self, most: int = _MOST_STEPS) -> None:
        self._most = most
        self.taken = 0

    def take(self, num: int = 1) -> None:
        """Raises :class:`TooManySteps`."""
        self.taken += num
        if self.taken > self._most:
            raise TooManySteps


def argument_schema(parameters: Any, key: str) -> Any:
    """The schema of the argument ``key``; None: it has none. ``parameters`` may be no schema at all."""
    parameters = _target(parameters, parameters, _DEPTH)
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if isinstance(properties, dict) and key in properties:
        return properties[key]
    others = parameters.get("additionalProperties") if isinstance(parameters, dict) else None
    return others if isinstance(others, dict) and others else None


def kinds(schema: Any, root: Any, steps: Steps | None = None) -> frozenset[str] | None:
    """The JSON types of values that follow ``schema`` (``number`` also for integers). None: any, as far as one sees.

    Args:
        root: the schema that references begin in.
        steps: new ones, for who wants to know how many were taken. All that read ``schema`` have to allow as many, or
            they find different types.
    """
    try:
        return _kinds(schema, root, steps or Steps(), _DEPTH)
    except TooManySteps:
        return None


def _kinds(schema: Any, root: Any, steps: Steps, depth: int) -> frozenset[str] | None:
    steps.take()
    if not isinstance(schema, dict) or depth == 0:
        return None
    found: frozenset[str] | None = None
    if "$ref" in schema:
        found = _kinds(resolved(root, schema["$ref"]), root, steps, depth - 1)
    names = schema.get("type")
    if isinstance(names, str):
        names = [names]
    if isinstance(names, list):
        steps.take(len(names) // _VALUES_A_STEP)
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        found = _both(found, frozenset("number" if name == "integer" else name for name in names))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        steps.take(len(values) // _VALUES_A_STEP)
        found = _both(found, frozenset(_JSON_TYPES.get(kind, "object") for kind in set(map(type, values))))
    for keyword in ("anyOf", "oneOf"):
        if isinstance(cases := schema.get(keyword), list) and cases:
            of_cases = [_kinds(case, root, steps, depth - 1) for case in cases]
            if None not in of_cases:
                found = _both(found, frozenset[str]().union(*(each for each in of_cases if each is not None)))
    if isinstance(parts := schema.get("allOf"), list):
        for part in parts:
            found = _both(found, _kinds(part, root, steps, depth - 1))
    return found


def resolved(root: Any, reference: Any) -> Any:
    """The part of ``root`` that a reference ``#/…`` names; None: there is none."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    names = reference.split("/", _MOST_NAMES + 1) if len(reference) <= _LONGEST_REFERENCE else []
    if not 0 < len(names) <= _MOST_NAMES + 1:
        return None
    found = root
    for step in names[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and len(key) < 10 and int(key) < len(found):
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
