"""Schemas by hand that engines get wrong. Bounded, so that nearly all outputs end under random logits."""

from __future__ import annotations

from typing import Any

_SHORT: dict[str, Any] = {"type": "string", "maxLength": 4}
_CLOSED: dict[str, Any] = {"additionalProperties": False}
EMPLOYEE: dict[str, Any] = {
    "type": "object",
    "required": ["name", "age", "skills", "work history"],
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "skills": {"type": "array", "minItems": 3, "items": {"type": "string", "maxLength": 10}},
        "work history": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["company", "position"],
                "properties": {
                    "company": {"type": "string"},
                    "duration": {"type": "string"},
                    "position": {"type": "string"},
                },
            },
        },
    },
}
"""BladeLLM's documented case."""


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    return schema


HARD: dict[str, dict[str, Any]] = {
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer", "minimum": 0, "maximum": 9},
                    "c": {"type": "array", "maxItems": 1, "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["v", "c"],
                **_CLOSED,
            }
        },
        "$ref": "#/$defs/node",
    },
    "list through the root": {"type": ["object", "null"], "properties": {"n": {"$ref": "#"}}, **_CLOSED},
    "mutual recursion": {
        "$defs": {
            "a": {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"$ref": "#/$defs/b"}]},
            "b": {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 1},
        },
        "$ref": "#/$defs/a",
    },
    "reference with siblings": {"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "maxLength": 3},
    "chain of references": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": {"enum": ["x", "y"]}},
        "$ref": "#/$defs/a",
    },
    "escaped reference": {"$defs": {"a/b~c d": _SHORT}, "$ref": "#/$defs/a~1b~0c%20d"},
    "definitions": {"definitions": {"p": _SHORT}, "type": "array", "items": {"$ref": "#/definitions/p"}, "maxItems": 2},
    "anchor": {"$defs": {"x": {"$anchor": "it", "const": 7}}, "$ref": "#it"},
    "reference into properties": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 3}, "b": {"$ref": "#/properties/a"}},
        "required": ["a", "b"],
        **_CLOSED,
    },
    "root id": {"$id": "https://example.com/s", "$defs": {"a": _SHORT}, "$ref": "https://example.com/s#/$defs/a"},
    "draft 7": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": _SHORT, "maxItems": 2},
    "pattern properties": {"type": "object", "patternProperties": {"^a[0-9]$": {"const": 1}}, **_CLOSED},
    "pattern and properties overlap": {
        "type": "object",
        "properties": {"a1": {"type": "integer", "maximum": 20}},
        "patternProperties": {"^a": {"type": "integer", "minimum": 5, "maximum": 99}},
        "required": ["a1"],
        "maxProperties": 2,
        **_CLOSED,
    },
    "pattern required": {
        "type": "object",
        "patternProperties": {"^z": _SHORT},
        "required": ["zz"],
        "maxProperties": 1,
        **_CLOSED,
    },
    "one property": {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "patternProperties": {"^.{1,3}$": _SHORT},
        **_CLOSED,
    },
    "additional of a type": {
        "type": "object",
        "properties": {"k": {"type": "null"}},
        "required": ["k", "other"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 2,
    },
    "forbidden property": {"type": "object", "properties": {"a": False, "b": _SHORT}, **_CLOSED},
    "empty object": {"type": "object", **_CLOSED},
    "empty array": {"type": "array", "maxItems": 0},
    "enum of all types": {"enum": [None, True, 3, -2.5, "s", "", [1, [2]], {"a": {"b": []}}]},
    "enum under a type": {"type": "string", "enum": ["a", 1, "b", None]},
    "enum under bounds": {"enum": [1, 5, 10, "x"], "minimum": 4},
    "const object": {"const": {"z": 1, "a": ["ä", None], "": {}}},
    "const escapes": {"const": "\"quoted\" \\ / \b\f\n\r\t \u0000\u001f\u007f\u2028 é 漢 😀"},
    "long const": {"const": "x" * 300},
    "unicode keys": {
        "type": "object",
        "properties": {"имя": _SHORT, "年龄": {"type": "integer", "minimum": 0, "maximum": 99}, "🎉": {"type": "null"}},
        "required": ["имя", "年龄", "🎉"],
        **_CLOSED,
    },
    "key with quotes": {
        "type": "object",
        "properties": {'a"b\\c\nd': {"const": 1}},
        "required": ['a"b\\c\nd'],
        **_CLOSED,
    },
    "keys that begin alike": {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in ("a", "aa", "aaa", "ab", "abc")},
        **_CLOSED,
    },
    "unicode lengths": {"type": "string", "minLength": 3, "maxLength": 3},
    "unicode pattern": {"type": "string", "pattern": "^[\u0400-\u04ff]{2,5}$"},
    "unanchored pattern": {"type": "string", "pattern": "ab", "maxLength": 6},
    "anchored alternatives": {"type": "string", "pattern": "^a|b$", "maxLength": 5},
    "pattern with slashes": {"type": "string", "pattern": "^/[a-z]{1,3}/\\d{2}\\.\\w$"},
    "pattern and length": {"type": "string", "pattern": "^a*$", "minLength": 2, "maxLength": 5},
    "pattern and format": {"type": "string", "format": "date", "pattern": "^2"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "hostname": {"type": "string", "format": "hostname", "maxLength": 20},
    "email": {"type": "string", "format": "email", "maxLength": 20},
    "uri": {"type": "string", "format": "uri", "maxLength": 20},
    "any of objects": {
        "anyOf": [
            {"type": "object", "properties": {"a": _SHORT}, "required": ["a"], **_CLOSED},
            {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}}, **_CLOSED},
        ]
    },
    "any of beside properties": {
        "type": "object",
        "properties": {"a": _SHORT, "b": _SHORT},
        **_CLOSED,
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "discriminated union": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "cat"}, "m": {"type": "boolean"}},
                "required": ["kind", "m"],
                **_CLOSED,
            },
            {"type": "object", "properties": {"kind": {"const": "dog"}, "w": _SHORT}, "required": ["kind"], **_CLOSED},
        ],
        "discriminator": {"propertyName": "kind"},
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 5}, "b": _SHORT}, "additionalProperties": False},
        ]
    },
    "all of enums": {"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}, {"minimum": 3}]},
    "integer bounds": {"type": "integer", "minimum": -17, "exclusiveMaximum": 3},
    "fraction bounds for an integer": {"type": "integer", "exclusiveMinimum": 0.5, "maximum": 2.5},
    "number bounds": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "narrow number": {"type": "number", "minimum": 0.125, "maximum": 0.25},
    "negative numbers": {"type": "number", "minimum": -2.5, "maximum": -1.25},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 500},
    "halves": {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 20},
    "free number": {"type": "number"},
    "free integer": {"type": "integer"},
    "all scalar types": {"type": ["null", "boolean", "integer", "number"]},
    "tuple": {
        "type": "array",
        "prefixItems": [{"const": 1}, _SHORT],
        "minItems": 2,
        "items": {"type": "null"},
        "maxItems": 3,
    },
    "closed tuple": {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False},
    "matrix": {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": {"type": "array", "minItems": 2, "maxItems": 2, "items": {"enum": [0, 1.5, -3]}},
    },
    "deep": _deep(12),
    "many required": {
        "type": "object",
        "properties": {f"p{index}": {"type": "boolean"} for index in range(40)},
        "required": [f"p{index}" for index in range(40)],
        **_CLOSED,
    },
    "large": {
        "type": "object",
        "properties": {f"property_{index}": {"enum": [index, None]} for index in range(500)},
        "required": ["property_250", "property_499"],
        **_CLOSED,
    },
    "large enum": {"enum": [f"value {index}" for index in range(2000)]},
    "no type, object keywords": {
        "required": ["a"],
        "properties": {"a": {"const": 1}},
        "enum": [{"a": 1}, {"a": 2}, {"b": 1}, 5],
    },
    "annotations": {
        "title": "T", "description": "d", "default": "x", "examples": ["x"], "deprecated": True, "readOnly": True,
        "writeOnly": False, "$comment": "c", "x-order": 3, "type": "boolean",
    },
}  # fmt: skip
