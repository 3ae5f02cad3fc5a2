"""Objects: which keys they take where a schema leaves that open, and ``propertyNames`` as properties.

A schema that says nothing of other keys allows any. A weak model fills them until ``max_tokens``, so outputs are held
to the listed keys where a request's schemas are *closed*: what ``allOf``, a ``$ref`` and their like describe together
is closed as one object, with the keys that any of them lists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.json_schema.formats import names_pattern
from blade_llm.sampling.guided.json_schema.steps import Steps

CLOSED: Final = "x-blade-closed"
"""Keyword of a root: whether its objects take no keys that they do not list, at every level."""
COMBINING: Final = ("allOf", "anyOf", "oneOf")
_OWN: Final = ("properties", "patternProperties", "required")
_LENGTHS: Final = ("minLength", "maxLength")
_PLAIN: Final = frozenset({"type", "title", "description", "default", "examples", "$comment"})
Resolve = Callable[[str], Any]


@dataclass(slots=True)
class Keys:
    """The keys that a schema and what it combines list.

    Attributes:
        names: whether one of them has a schema for it; if not, it is required.
        listed: one of them lists keys, be it none.
        others: one of them says itself what other keys there are.
        alternatives: not all of them hold at once.
        named: one of them has ``propertyNames``.
    """

    names: dict[str, bool] = field(default_factory=dict)
    patterns: dict[str, None] = field(default_factory=dict)
    least: int = 0
    listed: bool = False
    others: bool = False
    alternatives: bool = False
    named: bool = False

    def add(self, schema: dict[str, Any], resolve: Resolve, steps: Steps) -> None:
        """Those of ``schema`` and of all that it combines."""
        seen: set[int] = set()
        waiting: deque[Any] = deque([schema])
        while waiting:
            part = waiting.popleft()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            steps.take(1 + len(part.get("properties", ())) + len(part.get("required", ())))
            self._add(part)
            if "$ref" in part:
                waiting.append(resolve(part["$ref"]))
            for keyword in COMBINING:
                waiting += part.get(keyword, ())

    def _add(self, schema: dict[str, Any]) -> None:
        self.listed |= "properties" in schema or "patternProperties" in schema
        self.names |= dict.fromkeys(schema.get("properties", ()), True)
        for name in schema.get("required", ()):
            self.names.setdefault(name, False)
        self.patterns |= dict.fromkeys(schema.get("patternProperties", ()))
        self.least = max(self.least, schema.get("minProperties", 0))
        self.named |= "propertyNames" in schema
        self.others |= schema.get("additionalProperties", False) is not False or self.named
        self.alternatives |= "anyOf" in schema or "oneOf" in schema


def listed_keys(schema: dict[str, Any], resolve: Resolve, steps: Steps) -> Keys:
    """The keys that ``schema`` lists, with those of all schemas that describe the same object."""
    found = Keys()
    found.add(schema, resolve, steps)
    return found


def is_composed(schema: dict[str, Any]) -> bool:
    """Whether several schemas describe one value together. A lone ``$ref`` or ``anyOf`` only leads to others."""
    combining = [keyword for keyword in ("$ref", *COMBINING) if keyword in schema]
    alone = len(combining) == 1 and (combining[0] != "allOf" or len(schema["allOf"]) == 1)
    return bool(combining) and not (alone and not any(keyword in schema for keyword in _OWN))


def closing(keys: Keys, *, sealed: bool) -> dict[str, Any] | None:
    """A schema of objects with ``keys`` and no others; None where that cannot be meant.

    ``sealed``: the schema says so itself, by ``unevaluatedProperties``.
    """
    if keys.others:
        return None
    if not sealed and (not keys.listed or (keys.least > len(keys.names) and not keys.patterns)):
        return None
    names = [name for name, described in keys.names.items() if described or not sealed]
    made: dict[str, Any] = {"properties": dict.fromkeys(names, True), "additionalProperties": False}
    return made | ({"patternProperties": dict.fromkeys(keys.patterns, True)} if keys.patterns else {})


def with_named_properties(schema: dict[str, Any], resolve: Resolve, place: object) -> dict[str, Any]:
    """``schema`` without ``propertyNames``, with properties that mean it.

    Raises :class:`GrammarSpecError` for names that properties cannot express.
    """
    names = schema["propertyNames"]
    seen = 0
    while isinstance(names, dict) and "$ref" in names and not names.keys() - _PLAIN - {"$ref"} and seen < 9:
        names, seen = resolve(names["$ref"]), seen + 1
    made = {key: value for key, value in schema.items() if key != "propertyNames"}
    keywords = set() if names is True or not isinstance(names, dict) else names.keys() - _PLAIN
    if names is False:
        return {**made, "properties": {}, "patternProperties": {}, "additionalProperties": False}
    if not keywords and (names is True or names.get("type", "string") == "string"):
        return made
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    if "patternProperties" not in schema and keywords in ({"enum"}, {"const"}):
        values = [names["const"]] if "const" in names else names["enum"]
        listed = {name: properties.get(name, others) for name in values if isinstance(name, str)}
        return {**made, "properties": listed, "additionalProperties": False}
    pattern = _pattern(names, keywords)
    if pattern is None or properties or "patternProperties" in schema:
        raise GrammarSpecError(
            f"{place}: keyword 'propertyNames' is not supported but with enum, const, one of pattern, format or "
            "lengths, and without properties and patternProperties beside it; leave it out"
        )
    if pattern == "":
        return made
    return {**made, "patternProperties": {pattern: others}, "additionalProperties": False}


def _pattern(names: dict[str, Any], keywords: set[str]) -> str | None:
    """The pattern of names; empty: any; None: not known."""
    if names.get("type", "string") != "string":
        return None
    if keywords == {"pattern"}:
        found: str = names["pattern"]
        return found
    if keywords == {"format"}:
        return names_pattern(names["format"]) or ""
    if keywords and keywords <= set(_LENGTHS):
        return f"^.{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    return None
