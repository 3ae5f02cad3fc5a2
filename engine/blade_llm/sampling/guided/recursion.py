"""Checks that every part of a schema has a finite output. A ``$ref`` that always leads back to itself has none.

A model that enters such a part could only go on until ``max_tokens``, and masks of it cost more with every token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from blade_llm.sampling.guided.errors import GrammarSpecError

_MOST_ROUNDS: Final = 50
"""Each settles all parts that do not depend on a later one, in practice everything within three."""


def check_ends(root: Any, resolve: Callable[[str], Any]) -> None:
    """Raise :class:`GrammarSpecError` for a reachable schema without a finite output.

    ``root`` has the right form, and ``resolve`` finds what its references name. Contradictions are not searched for: a
    schema that nothing satisfies counts as one that ends.
    """
    ordered = _inside_out(root, resolve)
    ending: set[int] = set()
    for _ in range(_MOST_ROUNDS):
        known = len(ending)
        for schema in ordered:
            if id(schema) not in ending and _ends(schema, resolve, ending):
                ending.add(id(schema))
        if len(ending) == len(ordered):
            return
        if len(ending) == known:
            break
    endless = next((schema for schema in ordered if id(schema) not in ending), None)
    if endless is not None:
        name = endless.get("$ref") or endless.get("title") or ", ".join(list(endless)[:4])
        raise GrammarSpecError(
            f"endless recursion: the schema with {name!r} always contains itself, so no answer can end; "
            "make the property optional, the list possibly empty, or add an alternative"
        )


def _children(schema: dict[str, Any], resolve: Callable[[str], Any]) -> list[Any]:
    found = [resolve(schema["$ref"])] if "$ref" in schema else []
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        found += schema.get(keyword, ())
    for keyword in ("properties", "patternProperties"):
        found += schema.get(keyword, {}).values()
    return found + [schema[keyword] for keyword in ("items", "additionalProperties") if keyword in schema]


def _inside_out(root: Any, resolve: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Every reachable schema, its parts before it where they do not contain it."""
    found: list[dict[str, Any]] = []
    seen: set[int] = set()
    stack = [(root, False)]
    while stack:
        schema, leaving = stack.pop()
        if leaving:
            found.append(schema)
        elif isinstance(schema, dict) and id(schema) not in seen:
            seen.add(id(schema))
            stack.append((schema, True))
            stack += [(child, False) for child in _children(schema, resolve)]
    return found


def _ends(schema: dict[str, Any], resolve: Callable[[str], Any], ending: set[int]) -> bool:
    """Whether a finite output exists, given the schemas in ``ending`` that have one."""

    def known(part: Any) -> bool:
        return isinstance(part, bool) or id(part) in ending

    if "$ref" in schema and not known(resolve(schema["$ref"])):
        return False
    if not all(map(known, schema.get("allOf", ()))):
        return False
    if any(keyword in schema and not any(map(known, schema[keyword])) for keyword in ("anyOf", "oneOf")):
        return False
    if "const" in schema or "enum" in schema or "type" not in schema:
        return True
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return (
        any(name not in ("object", "array") for name in types)
        or ("object" in types and _object_ends(schema, known))
        or ("array" in types and _array_ends(schema, known))
    )


def _object_ends(schema: dict[str, Any], known: Callable[[Any], bool]) -> bool:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    # a required key without a schema of its own may fall under a pattern: then it counts as one that ends
    rest = True if "patternProperties" in schema else others
    return all(known(properties.get(name, rest)) for name in schema.get("required", ()))


def _array_ends(schema: dict[str, Any], known: Callable[[Any], bool]) -> bool:
    first, least = schema.get("prefixItems", []), schema.get("minItems", 0)
    return all(map(known, first[:least])) and (least <= len(first) or known(schema.get("items", True)))
