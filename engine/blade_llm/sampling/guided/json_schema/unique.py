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
"""Values of one ``enum``, some of them perhaps not of the type, and cases and values of an ``anyOf``."""
_MOST_TEXT: Final = 20_000
"""Characters of all lists of one place together."""
_TEXT_OF_A_STEP: Final = 100
_PLAIN: Final = frozenset({"type", "title", "description", "default", "examples", "deprecated"})
_LISTS: Final = frozenset({"type", "items", "minItems", "maxItems", "uniqueItems"})
"""Keywords that the written out lists mean as well."""
_OTHER_LISTS: Final = frozenset({"prefixItems", "enum", "const"})
_OF_TYPE: Final[dict[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(_whole(value), int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def unique_lists(schema: dict[str, Any], resolve: Callable[[str], Any], steps: Steps) -> list[list[Any]] | None:
    """All lists that follow ``schema``, whose ``uniqueItems`` is true; None: too many to write out."""
    if schema.get("type") != "array" or "items" not in schema or schema.keys() & _OTHER_LISTS:
        return None
    found = few_values(schema["items"], resolve, steps)
    if found is None:
        return None
    values: dict[str, Any] = {}
    for value in found:
        values.setdefault(as_text(value), value)
    if len(values) > _MOST:
        return None
    least = schema.get("minItems", 0)
    most = min(schema.get("maxItems", len(values)), len(values))
    choose = permutations if len(values) <= _IN_ANY_ORDER else combinations
    texts = [chosen for length in range(least, most + 1) for chosen in choose(values, length)]
    characters = sum(len(text) for chosen in texts for text in chosen)
    if characters > _MOST_TEXT:
        return None
    steps.take(len(texts) + characters // _TEXT_OF_A_STEP)
    return [[values[text] for text in chosen] for chosen in texts]


def as_text(value: Any) -> str:
    """Of equal JSON values the same: 1 and 1.0 are one number."""
    return json.dumps(_whole(value), sort_keys=True)


def _whole(value: Any) -> Any:
    """``value`` with whole numbers as integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return {key: _whole(item) for key, item in value.items()} if isinstance(value, dict) else value


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
        values = [value for case in cases if case for value in case]
        return None if None in cases or len(values) > _LONGEST else values
    if keywords in ({"const"}, {"enum"}):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if len(values) > _LONGEST:
            return None
        return [value for value in values if any(_OF_TYPE[name](value) for name in names)]
    return None


def rest(schema: dict[str, Any]) -> dict[str, Any]:
    """What ``schema`` says beside what its written out lists mean."""
    return {key: value for key, value in schema.items() if key not in _LISTS}
