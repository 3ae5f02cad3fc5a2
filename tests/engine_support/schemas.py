"""JSON Schemas for tests of guided decoding: random ones with bounded strings and arrays, and hard ones by hand."""

from __future__ import annotations

import random
from typing import Any

_NAMES = ("a", "b1", "name", "work history", "größe", "键", 'quo"te', "back\\slash", "sl/ash", "x_y", "😀", "")
_PATTERNS = ("^[a-c]{1,4}$", "^x[0-9]{2}$", "^(on|off)$", "^[A-Z][a-z]{0,5}$", "^\\d{3}-\\d{2}$", "^a|b$", "^\\w{2,6}$")
_KEY_PATTERNS = ("^[k-m]{1,3}$", "^n[0-9]$", "^o{1,4}$")
_FORMATS = ("date", "time", "date-time", "ipv4", "ipv6", "uuid", "duration")
UNSUPPORTED: tuple[tuple[str, Any], ...] = (
    ("not", {"type": "null"}),
    ("if", {"type": "string"}),
    ("then", {"maxLength": 1}),
    ("else", {"maxLength": 1}),
    ("contains", {"type": "integer"}),
    ("minContains", 1),
    ("maxContains", 1),
    ("propertyNames", {"maxLength": 3, "pattern": "^a"}),
    ("propertyNames", {"anyOf": [{"maxLength": 3}]}),
    ("dependentRequired", {"a": ["b"]}),
    ("dependentSchemas", {"a": {"required": ["b"]}}),
    ("dependencies", {"a": ["b"]}),
    ("unevaluatedProperties", {"type": "null"}),
    ("unevaluatedItems", {"type": "null"}),
    ("additionalItems", False),
    ("$dynamicRef", "#node"),
    ("$recursiveRef", "#"),
    ("x-guidance", {"lenient": True}),
    ("maxlength", 3),
    ("requird", ["a"]),
    ("minItem", 1),
    ("patern", "^a"),
    ("$ref", "https://example.com/schema.json"),
    ("$ref", "file:///etc/passwd"),
)
"""Keyword and value that must be refused wherever they stand."""


def random_schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """One schema whose outputs end soon under random logits."""
    leaves = [_string, _integer, _number, _constant, _scalar]
    inner = [_object, _object, _array, _tuple, _any_of, _one_of, _all_of, _reference]
    make = rng.choice(leaves if depth == 0 else inner if depth == 3 else [*leaves, *inner])
    schema = make(rng, depth)
    if rng.random() < 0.2:
        schema["description"] = "what it is"
    return schema


def with_unsupported(rng: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` with one keyword that nobody may ignore, at a random place that outputs depend on."""
    keyword, value = rng.choice(UNSUPPORTED)
    wrapped: dict[str, Any] = {**schema, keyword: value}
    if rng.random() < 0.2:
        return {"$defs": {"d": wrapped}, "type": "object", "properties": {"p": {"$ref": "#/$defs/d"}}}
    for _ in range(rng.randrange(3)):
        wrapped = rng.choice(
            [
                {"type": "object", "properties": {"p": wrapped}},
                {"type": "array", "items": wrapped},
                {"anyOf": [{"type": "null"}, wrapped]},
                {"type": "object", "additionalProperties": wrapped},
                {"type": "object", "patternProperties": {"^p": wrapped}},
            ]
        )
    return wrapped


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.random()
    if kind < 0.3:
        return {"type": "string", "pattern": rng.choice(_PATTERNS), "maxLength": 6}
    if kind < 0.5:
        return {"type": "string", "format": rng.choice(_FORMATS)}
    least = rng.randrange(4)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randrange(8)}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(-1000, 1000)
    schema: dict[str, Any] = {"type": "integer"}
    if rng.random() < 0.7:
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = least
    if rng.random() < 0.7:
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = least + rng.choice([2, 7, 100, 12345])
    if rng.random() < 0.2:
        schema["multipleOf"] = rng.choice([1, 2, 3, 7]) if len(schema) == 3 and "maximum" not in schema else 1
    return schema


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.choice([-3.5, 0, 0.25, 10, -1000])
    schema: dict[str, Any] = {"type": "number"}
    if rng.random() < 0.7:
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = least
    if rng.random() < 0.7:
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = least + rng.choice([0.5, 3, 1000.125])
    return schema


def _scalar(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": rng.choice(["boolean", "null", ["integer", "null"], ["boolean", "null"]])}


def _constant(rng: random.Random, depth: int) -> dict[str, Any]:
    values = [None, True, 0, -7, 1.5, "ja", "", 'ä"\\/\n\t', "漢字😀", [1, "two"], {"k": None, "a b": [False]}]
    return {"const": rng.choice(values)} if rng.random() < 0.5 else {"enum": rng.sample(values, rng.randrange(1, 5))}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_NAMES, rng.randrange(1, 5))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.5],
        "additionalProperties": False,
    }
    kind = rng.random()
    if kind < 0.15:
        schema["patternProperties"] = {pattern: random_schema(rng, 0) for pattern in rng.sample(_KEY_PATTERNS, 2)}
    elif kind < 0.25:
        schema = {
            "type": "object",
            "patternProperties": {rng.choice(_KEY_PATTERNS): random_schema(rng, 0)},
            "additionalProperties": False,
            "minProperties": rng.randrange(2),
            "maxProperties": rng.randrange(1, 4),
        }
    return schema


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(3)
    return {
        "type": "array",
        "items": random_schema(rng, depth - 1),
        "minItems": least,
        "maxItems": least + rng.randrange(3),
    }


def _tuple(rng: random.Random, depth: int) -> dict[str, Any]:
    first = [random_schema(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
    return {"type": "array", "prefixItems": first, "items": False, "minItems": rng.randrange(len(first) + 1)}


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}


def _one_of(rng: random.Random, depth: int) -> dict[str, Any]:
    cases = [{"type": "null"}, {"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 99}]
    cases += [{"type": "string", "maxLength": 3}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]
    return {"oneOf": rng.sample(cases, 2)}


def _all_of(rng: random.Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {"allOf": [{"type": "integer", "minimum": rng.randrange(10)}, {"maximum": 10 + rng.randrange(90)}]}
    return {
        "allOf": [
            {"type": "object", "properties": {"l": random_schema(rng, 0)}, "required": ["l"]},
            {"type": "object", "properties": {"l": True, "r": random_schema(rng, 0)}, "additionalProperties": False},
        ]
    }


def _reference(rng: random.Random, depth: int) -> dict[str, Any]:
    """References, some of them to the schema that holds them. Only a root can be referred to."""
    schema = random_schema(rng, min(depth, 2) - 1)
    if depth < 3:
        return schema
    if rng.random() < 0.5:
        return {"$defs": {"it em/s": schema}, "type": "array", "items": {"$ref": "#/$defs/it%20em~1s"}, "maxItems": 2}
    return {
        "type": "object",
        "properties": {
            "value": schema,
            "next": {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"$ref": "#"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }


def has_references(value: Any) -> bool:
    """Whether any part of a schema refers to another, so that it cannot be put into a larger one."""
    if isinstance(value, dict):
        return "$ref" in value or any(map(has_references, value.values()))
    return isinstance(value, list) and any(map(has_references, value))
