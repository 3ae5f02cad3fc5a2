"""``oneOf`` as ``anyOf``, where no value can match two of its cases.

llguidance finds that of cases that are written out; here they may be references, as pydantic writes them, and closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from blade_llm.sampling.guided.json_schema.objects import COMBINING, Resolve
from blade_llm.sampling.guided.json_schema.steps import Steps
from blade_llm.sampling.guided.json_schema.unique import as_text, few_values

_MOST: Final = 100
_DEPTH: Final = 8
_TOGETHER: Final = ("$ref", *COMBINING, "propertyNames")
_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "string"})


@dataclass(frozen=True, slots=True)
class _Case:
    types: frozenset[str]
    values: frozenset[str] | None
    """All there are, as JSON, where they are few."""
    required: frozenset[str]
    properties: dict[str, Any]
    keys: frozenset[str] | None
    """None: outputs have others, too."""
    shut: bool
    """The schema itself takes no others: it is not that outputs alone are held to :attr:`keys`."""


def are_disjoint(cases: Sequence[Any], resolve: Resolve, steps: Steps, *, closed: bool) -> bool:
    """Whether no output that follows one of ``cases`` matches another. ``closed``: outputs' objects have no keys that
    are not listed."""
    if len(cases) > _MOST:
        return False
    comparison = _Comparison(resolve, steps, closed)
    return all(comparison.disjoint(first, second, _DEPTH) for first, second in combinations(cases, 2))


class _Comparison:
    def __init__(self, resolve: Resolve, steps: Steps, closed: bool) -> None:
        self._resolve = resolve
        self._steps = steps
        self._closed = closed
        self._known: dict[int, _Case] = {}

    def disjoint(self, first: Any, second: Any, depth: int) -> bool:
        self._steps.take()
        return self._disjoint(self._case(first), self._case(second), depth)

    def _disjoint(self, first: _Case, second: _Case, depth: int) -> bool:
        if first.values is not None and second.values is not None:
            return not first.values & second.values
        common = first.types & second.types
        if common != {"object"}:
            return not common
        if _fails(first, second) and _fails(second, first):
            return True
        both = [name for name in first.properties if name in second.properties]
        return depth > 0 and any(
            self.disjoint(first.properties[name], second.properties[name], depth - 1)
            for name in both
            if name in first.required and name in second.required
        )

    def _case(self, schema: Any) -> _Case:
        if id(schema) not in self._known:
            self._known[id(schema)] = self._read(schema)
        return self._known[id(schema)]

    def _read(self, schema: Any) -> _Case:
        schema = self._behind(schema)
        if not isinstance(schema, dict) or schema.get("nullable"):
            return _Case(_TYPES, None, frozenset(), {}, None, False)
        properties, required = schema.get("properties", {}), frozenset(schema.get("required", ()))
        self._steps.take(1 + len(required))
        values = few_values(schema, self._resolve, self._steps)
        keys = required.union(properties)  # those of an object that is closed here
        alone = self._closed and "properties" in schema and not any(keyword in schema for keyword in _TOGETHER)
        alone &= schema.get("minProperties", 0) <= len(keys)
        shut = schema.get("additionalProperties") is False
        listed = (shut or (alone and "additionalProperties" not in schema)) and "patternProperties" not in schema
        return _Case(
            self._types(schema, _DEPTH),
            None if values is None else frozenset(map(as_text, values)),
            required,
            properties,
            keys if listed else None,
            shut and listed,
        )

    def _behind(self, schema: Any) -> Any:
        """The schema that a reference leads to."""
        for _ in range(_DEPTH):
            if not isinstance(schema, dict) or "$ref" not in schema or "properties" in schema or schema.get("nullable"):
                break
            schema = self._resolve(schema["$ref"])
        return schema

    def _types(self, schema: Any, depth: int) -> frozenset[str]:
        self._steps.take()
        schema = self._behind(schema)
        if not isinstance(schema, dict) or schema.get("nullable") or depth == 0:
            return _TYPES
        if "type" not in schema and (cases := schema.get("anyOf") or schema.get("oneOf")):
            return frozenset[str]().union(*(self._types(case, depth - 1) for case in cases))
        names = schema.get("type", list(_TYPES))
        names = names if isinstance(names, list) else [names]
        return frozenset("number" if name == "integer" else name for name in names)


def _fails(output: _Case, schema: _Case) -> bool:
    """Whether every output of one case lacks a key of the other, or has one that this does not take."""
    lacks = output.keys is not None and not schema.required <= output.keys
    return lacks or (schema.shut and schema.keys is not None and not output.required <= schema.keys)
