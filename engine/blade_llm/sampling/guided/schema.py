"""Checks that outputs can be held to a JSON Schema: a constraint that cannot be followed is refused, never ignored.

Every schema that can be reached from the root is read as draft 2020-12. A keyword is supported, a constraint that is
not, which is an error that names its place as a JSON pointer, or an annotation, as all names are that no draft knows.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

from blade_llm.sampling.guided import limits
from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.json_schema.objects import CLOSED, listed_keys, with_named_properties
from blade_llm.sampling.guided.json_schema.steps import Steps
from blade_llm.sampling.guided.json_schema.unique import unique_lists
from blade_llm.sampling.guided.lengths import TextLengths
from blade_llm.sampling.guided.numbers import NumberBounds
from blade_llm.sampling.guided.recursion import check_ends
from blade_llm.sampling.guided.references import Place, References

ANNOTATIONS: Final = frozenset(
    {
        "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment",
        "discriminator", "externalDocs", "xml", "propertyOrdering", "enumDescriptions", "markdownDescription",
    }
)  # fmt: skip
"""Names of keywords that change no output. There are others: see :func:`is_annotation`."""
_TYPES: Final = ("null", "boolean", "object", "array", "number", "integer", "string")
_DRAFTS: Final = (
    "draft-06/schema",
    "draft-07/schema",
    "draft/2019-09/schema",
    "draft/2020-12/schema",
    "json-schema.org/schema",  # whichever is the latest: genson writes it
)
_EXACT: Final = 2**53
_REFUSED: Final = {
    "not": "say what is allowed",
    "if": "write anyOf with the cases",
    "then": "write anyOf with the cases",
    "else": "write anyOf with the cases",
    "contains": "leave it out",
    "minContains": "leave it out",
    "maxContains": "leave it out",
    "dependencies": "write anyOf with the cases",
    "dependentRequired": "write anyOf with the cases",
    "dependentSchemas": "write anyOf with the cases",
    "additionalItems": "write the first items as prefixItems and the others as items (draft 2020-12)",
    "$dynamicRef": "write $ref",
    "$recursiveRef": "write $ref",
    "disallow": "say what is allowed",
    "extends": "write allOf",
    "divisibleBy": "write multipleOf",
    "x-guidance": "leave it out",
}
"""Constraints that outputs cannot be held to → what to do instead."""
_MISSPELT: Final = 0.88
"""How similar a name is to a keyword that is meant."""


def is_annotation(keyword: str) -> bool:
    """Whether a keyword changes no output: no draft of JSON Schema has it as a constraint, nor is it one misspelt."""
    if keyword in ANNOTATIONS:
        return True
    if keyword in _VALUES or keyword in _REFUSED:
        return False
    return keyword.startswith("x-") or _meant(keyword) is None


@lru_cache(maxsize=1024)
def _meant(keyword: str) -> str | None:
    if len(keyword) > 32:
        return None
    lower = keyword.lower()
    named = {name.lower(): name for name in (*_VALUES, *_REFUSED) if len(name) > 3}
    near = difflib.get_close_matches(lower, named, 1, _MISSPELT)
    return named[near[0]] if near else None


def check_schema(schema: Any, lengths: TextLengths | None = None) -> tuple[str, ...]:
    """Raise :class:`GrammarSpecError` for a schema with a constraint that cannot be followed.

    Returns the places, as JSON pointers, of each ``uniqueItems`` that outputs are not held to.

    Args:
        lengths: of the schemas checked before that outputs may have to follow as well.
    """
    _check_size(schema)
    references = References(schema)
    walk = _Walk(schema, references, lengths or TextLengths())
    walk.run()
    check_ends(schema, lambda reference: references.resolve(reference, "#"))
    return tuple(walk.unheld)


def _check_size(schema: Any) -> None:
    """Bounds what everything after it has to do, recursion included."""
    properties, stack = 0, [(schema, 1)]
    while stack:
        value, depth = stack.pop()
        if depth > limits.MAX_DEPTH:
            raise GrammarSpecError(f"the schema is nested more than {limits.MAX_DEPTH} levels deep, the limit")
        if isinstance(value, dict):
            mine = value.get("properties")
            if isinstance(mine, dict):
                properties += len(mine)
                if len(mine) > limits.MAX_OBJECT_PROPERTIES:
                    raise GrammarSpecError(
                        f"an object has {len(mine)} properties; the limit is {limits.MAX_OBJECT_PROPERTIES}"
                    )
            stack += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list):
            stack += [(item, depth + 1) for item in value]
    if properties > limits.MAX_PROPERTIES:
        raise GrammarSpecError(f"the schema has {properties} properties; the limit is {limits.MAX_PROPERTIES}")


class _Walk:
    """Visits every schema once that an output may have to follow."""

    def __init__(self, root: Any, references: References, lengths: TextLengths) -> None:
        self._root = root
        self._references = references
        self._lengths = lengths
        self._seen: set[int] = set()
        self._bounds = NumberBounds()
        self._steps = Steps()
        self.unheld: list[str] = []
        self._lists: list[tuple[dict[str, Any], Place]] = []
        self._objects: list[tuple[dict[str, Any], Place]] = []
        """Those whose keys are checked when every schema has the right form."""
        self._waiting: list[tuple[Any, Place]] = [(root, Place("#"))]

    def run(self) -> None:
        while self._waiting:
            schema, path = self._waiting.pop()
            if isinstance(schema, bool):
                continue
            if not isinstance(schema, dict):
                raise GrammarSpecError(f"{path}: a schema must be an object or a boolean, not {_name(schema)}")
            if id(schema) not in self._seen:
                self._seen.add(id(schema))
                before = len(self._waiting)
                for keyword, value in schema.items():
                    self._keyword(schema, keyword, value, path / keyword)
                _check_counts(schema, path)
                if schema.get("uniqueItems") is True:
                    self._lists.append((schema, path))
                if "propertyNames" in schema or schema.get("unevaluatedProperties") is False:
                    self._objects.append((schema, path))
                self._bounds.add(schema, path, [child for child, _ in self._waiting[before:]])
                self._lengths.add(schema)
        self._bounds.check()
        self._lengths.check()
        for schema, path in self._objects:
            self._check_keys(schema, path)
        self.unheld += [f"{path}/uniqueItems" for schema, path in self._lists if self._has_many(schema, path)]

    def _has_many(self, schema: dict[str, Any], path: Place) -> bool:
        return unique_lists(schema, lambda reference: self._references.resolve(reference, path), self._steps) is None

    def _check_keys(self, schema: dict[str, Any], path: Place) -> None:
        def resolve(reference: str) -> Any:
            return self._references.resolve(reference, path)

        if "propertyNames" in schema:
            with_named_properties(schema, resolve, path / "propertyNames")
        if schema.get("unevaluatedProperties") is False:
            keys = listed_keys(schema, resolve, self._steps)
            if keys.alternatives or keys.named:
                raise GrammarSpecError(
                    f"{path}/unevaluatedProperties: keyword 'unevaluatedProperties' is not supported together with "
                    "anyOf, oneOf or propertyNames; write additionalProperties into each case"
                )

    def _keyword(self, schema: dict[str, Any], keyword: str, value: Any, path: Place) -> None:
        if keyword in _VALUES:
            expected, holds = _VALUES[keyword]
            if not holds(value):
                raise GrammarSpecError(f"{path}: must be {expected}")
        if keyword in ("$schema", "$id") and schema is not self._root:
            raise GrammarSpecError(f"{path}: {keyword} is supported at the root only")
        if keyword == "$schema":
            if not any(draft in value for draft in _DRAFTS):
                raise GrammarSpecError(f"{path}: only drafts 6, 7, 2019-09 and 2020-12 are supported")
        elif keyword == "$ref":
            self._waiting.append((self._references.resolve(value, path), Place(value)))
        elif keyword in ("enum", "const"):
            for number in _numbers(value):
                if abs(number) > _EXACT:
                    raise GrammarSpecError(f"{path}: {number} is too large to be kept exactly; the limit is 2^53")
        elif keyword in _ONE:
            self._waiting.append((value, path))
        elif keyword in _LISTS:
            self._waiting += [(item, path / str(index)) for index, item in enumerate(value)]
        elif keyword in _MAPS:
            self._waiting += [(item, path / name) for name, item in value.items()]
        elif keyword in _REFUSED:
            raise GrammarSpecError(f"{path}: keyword {keyword!r} is not supported; {_REFUSED[keyword]}")
        elif keyword == "unevaluatedItems" and value is False and any(part in schema for part in ("$ref", *_COMBINING)):
            raise GrammarSpecError(
                f"{path}: keyword {keyword!r} is not supported here; write items: false into each case"
            )
        elif keyword not in _VALUES and keyword not in ANNOTATIONS and not is_annotation(keyword):
            raise GrammarSpecError(f"{path}: keyword {keyword!r} is not supported; did you mean {_meant(keyword)!r}?")


def _check_counts(schema: dict[str, Any], path: Place) -> None:
    """Keys that are not listed may repeat in an output, so they count only as far as repeats cannot deceive."""
    required = set(schema.get("required", ()))
    listed = required <= set(schema.get("properties", ()))
    if schema.get("minProperties", 0) > len(required) + (listed or not required):
        raise GrammarSpecError(
            f"{path}/minProperties: at most one more than the number of required properties is supported; "
            "list the properties as required"
        )
    if len(schema.get("patternProperties", ())) > limits.MAX_PATTERN_PROPERTIES:
        raise GrammarSpecError(f"{path}/patternProperties: the limit is {limits.MAX_PATTERN_PROPERTIES} patterns")


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _name(value: Any) -> str:
    return {type(None): "null", str: "a string", list: "a list"}.get(type(value), "a number")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(name in _TYPES for name in names)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


_ONE: Final = ("items", "additionalProperties", "propertyNames")
_COMBINING: Final = ("anyOf", "oneOf", "allOf")
_LISTS: Final = (*_COMBINING, "prefixItems")
_MAPS: Final = ("properties", "patternProperties")
_COUNT: Final = ("a whole number from 0 to 2^31", _is_count)
_NUMBER: Final = ("a number", _is_number)
_TEXT: Final = ("a string", _is_text)
_SCHEMA: Final = ("one schema (lists of items are written as prefixItems)", _is_schema)
_FLAG: Final = ("true or false", _is_flag)
_SCHEMAS: Final = ("a list of at least one schema", _is_schemas)
_MAP: Final = ("an object", _is_map)
_VALUES: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "$schema": _TEXT, "$id": _TEXT, "$ref": _TEXT, "$anchor": _TEXT, "$defs": _MAP, "definitions": _MAP,
    "type": (f"one of {', '.join(_TYPES)}, or a list of them", _is_type),
    "enum": ("a list of at least one value", _is_schemas), "const": ("", lambda _: True),
    "anyOf": _SCHEMAS, "oneOf": _SCHEMAS, "allOf": _SCHEMAS,
    "properties": _MAP, "patternProperties": _MAP, "additionalProperties": _SCHEMA, "propertyNames": _SCHEMA,
    "unevaluatedProperties": _FLAG, "unevaluatedItems": _FLAG, "uniqueItems": _FLAG, "nullable": _FLAG, CLOSED: _FLAG,
    "required": ("a list of strings", _is_texts), "minProperties": _COUNT, "maxProperties": _COUNT,
    "items": _SCHEMA, "prefixItems": _SCHEMAS, "minItems": _COUNT, "maxItems": _COUNT,
    "pattern": _TEXT, "format": _TEXT, "minLength": _COUNT, "maxLength": _COUNT,
    "minimum": _NUMBER, "maximum": _NUMBER, "exclusiveMinimum": _NUMBER, "exclusiveMaximum": _NUMBER,
    "multipleOf": ("a number greater than 0", lambda value: _is_number(value) and value > 0),
}  # fmt: skip
"""Supported keyword → what its value must be."""
