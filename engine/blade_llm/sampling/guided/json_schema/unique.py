"""``uniqueItems`` where the items have few values: the lists are written out, and no value is in one twice.

A grammar cannot compare an item with those before it, so elsewhere nothing holds the rule
(:func:`~blade_llm.sampling.guided.schema.check_schema` names these places).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations, permutations
from typing import Any, Final

from blade_llm.sampling.guided.json_schema.steps import Steps

_IN_ANY_ORDER: Final = 4
_MOST: Final = 7
"""Values, in the order of the schema then: 128 lists."""
_DEPTH: Final = 8
_LONGEST: Final = 64
"""Values of one ``enum``, some of them perhaps not of the type, and cases of an ``anyOf``."""
_PLAIN: Final = frozenset({"type", "title", "description", "default", "examples", "deprecated"})
_LISTS: Final = frozenset({"type", "items", "minItems", "maxItems", "uniqueItems"})
"""Keywords that the written out lists mean as well."""
_OF_TYPE: Final[dict[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def unique_lists(schema: dict[str, Any], resolve: Callable[[str], Any], steps: Steps) -> list[list[Any]] | None:
    """All lists that follow ``schema``, whose ``uniqueItems`` is true; None: too many to write out."""
    if schema.get("type") != "array" or "items" not in schema or "prefixItems" in schema:
        return None
    found = few_values(schema["items"], resolve, steps)
    values = None if found is None else list({json.dumps(value, sort_keys=True): value for value in found}.values())
    if values is None or len(values) > _MOST:
        return None
    least = schema.get("minItems", 0)
    most = min(schema.get("maxItems", len(values)), len(values))
    choose = permutations if len(values) <= _IN_ANY_ORDER else combinations
    return [list(chosen) for length in range(least, most + 1) for chosen in choose(values, length)]


def few_values(schema: Any, resolve: Callable[[str], Any], steps: Steps, depth: int = _DEPTH) -> list[Any] | None:
    """The values that follow ``schema``; None: not few, or not known."""
    if not isinstance(schema, dict) or depth == 0:
        return None
    steps.take()
    keywords = {key for key in schema if key not in _PLAIN and not key.startswith("x-")}
    names = schema.get("type", list(_OF_TYPE))
    names = names if isinstance(names, list) else [names]
    if not keywords:
        few: dict[Any, list[Any]] = {"null": [None], "boolean": [False, True]}
        return [value for name in names for value in few[name]] if set(names) <= few.keys() else None
    if keywords == {"$ref"}:
        return few_values(resolve(schema["$ref"]), resolve, steps, depth - 1)
    if keywords == {"anyOf"} and len(schema["anyOf"]) <= _LONGEST:
        cases = [few_values(case, resolve, steps, depth - 1) for case in schema["anyOf"]]
        return None if None in cases else [value for case in cases if case for value in case]
    if keywords in ({"const"}, {"enum"}):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if len(values) > _LONGEST:
            return None
        return [value for value in values if any(_OF_TYPE[name](value) for name in names)]
    return None


def rest(schema: dict[str, Any]) -> dict[str, Any]:
    """What ``schema`` says beside what its written out lists mean."""
    return {key: value for key, value in schema.items() if key not in _LISTS}
