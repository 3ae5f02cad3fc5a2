"""Values that a schema allows, written as guided outputs write them: keys in the schema's order, ``", "`` and ``": "``.

For the schemas of :mod:`engine_support.schemas` without expressions and formats. It knows nothing of grammars, so that
both can be held against each other.
"""

from __future__ import annotations

import json
import random
from decimal import Decimal
from math import ceil, floor
from typing import Any

_LETTERS = "abzAZ019 _-/{}[]:,.'é漢😀\u2028\t\n\\\""


def random_instance(rng: random.Random, schema: Any, root: dict[str, Any]) -> Any:
    """A value; not always one that ``schema`` allows, where parts of it overlap."""
    if not isinstance(schema, dict):
        return rng.choice([None, True, -3, "x", [1, []], {"k": {}}])
    if "$ref" in schema:
        target = root if schema["$ref"] == "#" else next(iter(root["$defs"].values()))
        return random_instance(rng, target, root)
    if cases := schema.get("anyOf") or schema.get("oneOf"):
        return random_instance(rng, rng.choice(cases), root)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else rng.choice(schema["enum"])
    if "allOf" in schema:
        merged: dict[str, Any] = {}
        for part in schema["allOf"]:
            properties = {**part.get("properties", {}), **merged.get("properties", {})}
            merged = {**merged, **part, **({"properties": properties} if properties else {})}
        return random_instance(rng, merged, root)
    kinds = schema.get("type", "null")
    return _of(rng, rng.choice(kinds) if isinstance(kinds, list) else kinds, schema, root)


def text_of(value: Any) -> str:
    """``value`` as an output."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text_of(key)}: {text_of(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text_of, value)) + "]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        plain = format(Decimal(repr(value)), "f")
        plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
        return "0" if plain == "-0" else plain
    return json.dumps(value, ensure_ascii=False)


def _of(rng: random.Random, kind: str, schema: dict[str, Any], root: dict[str, Any]) -> Any:
    match kind:
        case "null":
            return None
        case "boolean":
            return rng.random() < 0.5
        case "string":
            length = rng.randint(schema.get("minLength", 0), schema.get("maxLength", 10))
            return "".join(rng.choice(_LETTERS) for _ in range(length))
        case "integer":
            low, high = _range(schema)
            step = schema.get("multipleOf", 1)
            return rng.randint(ceil(low / step), max(ceil(low / step), floor(high / step))) * step
        case "number":
            low, high = _range(schema)
            return rng.choice([low, high, round(rng.uniform(low, high), rng.randrange(6)), ceil(low)])
        case "array":
            first = schema.get("prefixItems", [])
            most = schema.get("maxItems", len(first) if schema.get("items") is False else 3)
            length = rng.randint(schema.get("minItems", 0), most)
            rest = [schema.get("items", True)] * length
            return [random_instance(rng, part, root) for part in [*first, *rest][:length]]
        case _:
            return {
                name: random_instance(rng, part, root)
                for name, part in schema.get("properties", {}).items()
                if name in schema.get("required", []) or rng.random() < 0.5
            }


def _range(schema: dict[str, Any]) -> tuple[float, float]:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        low = -10_000 if high is None else high - 10_000
    return low, low + 10_000 if high is None else high
