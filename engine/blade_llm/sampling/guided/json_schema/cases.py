"""``oneOf`` as ``anyOf``, where no value can match two of its cases.

llguidance finds that of cases that are written out; here they may be references, as pydantic writes them, and closed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from blade_llm.sampling.guided.json_schema.objects import COMBINING, Resolve
from blade_llm.sampling.guided.json_schema.steps import Steps
from blade_llm.sampling.guided.json_schema.unique import few_values

_MOST: Final = 100
_DEPTH: Final = 8
_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "string"})


@dataclass(frozen=True, slots=True)
class _Case:
    types: frozenset[str]
    required: frozenset[str]
    tags: dict[str, frozenset[str]]
    """Required properties with few values, these as JSON."""
    keys: frozenset[str] | None
    """None: it takes others."""


def are_disjoint(cases: Sequence[Any], resolve: Resolve, steps: Steps, *, closed: bool) -> bool:
    """Whether no value matches two of ``cases``. ``closed``: objects take no keys that they do not list."""
    if len(cases) > _MOST:
        return False
    read = [_read(case, resolve, steps, closed=closed) for case in cases]
    return all(_disjoint(first, second) for first, second in combinations(read, 2))


def _read(schema: Any, resolve: Callable[[str], Any], steps: Steps, *, closed: bool) -> _Case:
    for _ in range(_DEPTH):
        if not isinstance(schema, dict) or "$ref" not in schema or "properties" in schema:
            break
        schema = resolve(schema["$ref"])
    if not isinstance(schema, dict) or schema.get("nullable"):
        return _Case(_TYPES, frozenset(), {}, None)
    names = schema.get("type", list(_TYPES))
    types = frozenset(
        "number" if name == "integer" else name for name in (names if isinstance(names, list) else [names])
    )
    properties, required = schema.get("properties", {}), frozenset(schema.get("required", ()))
    steps.take(1 + len(required))
    tags = {}
    for name in required & properties.keys():
        if (values := few_values(properties[name], resolve, steps)) is not None:
            tags[name] = frozenset(json.dumps(value, sort_keys=True) for value in values)
    alone = closed and "properties" in schema and not any(keyword in schema for keyword in ("$ref", *COMBINING))
    shut = schema.get("additionalProperties", not alone) is False and "patternProperties" not in schema
    return _Case(types, required, tags, frozenset(properties) if shut else None)


def _disjoint(first: _Case, second: _Case) -> bool:
    common = first.types & second.types
    if not common:
        return True
    if common != {"object"}:
        return False
    if any(not first.tags[name] & second.tags[name] for name in first.tags.keys() & second.tags.keys()):
        return True
    return any(
        one.keys is not None and not other.required <= one.keys for one, other in ((first, second), (second, first))
    )
