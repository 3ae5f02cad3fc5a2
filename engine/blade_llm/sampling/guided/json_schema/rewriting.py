"""Rewrites a checked JSON Schema for llguidance, so that every output that it allows follows the schema.

Only what an output has to follow is visited. Schemas that references lead to are put under ``$defs`` anew, once as
objects of their own and once as parts of a larger one, which is closed as a whole.
"""

from __future__ import annotations

from typing import Any, Final

from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.json_schema.cases import are_disjoint
from blade_llm.sampling.guided.json_schema.contents import content_pattern
from blade_llm.sampling.guided.json_schema.formats import EXACT, INTEGER, NATIVE
from blade_llm.sampling.guided.json_schema.objects import (
    CLOSED,
    closing,
    is_composed,
    listed_keys,
    with_named_properties,
)
from blade_llm.sampling.guided.json_schema.patterns import without_look_aheads
from blade_llm.sampling.guided.json_schema.steps import Steps
from blade_llm.sampling.guided.json_schema.unique import rest, unique_lists
from blade_llm.sampling.guided.references import References

_COPIED: Final = frozenset(
    {
        "type", "enum", "const", "required", "minProperties", "maxProperties", "minItems", "maxItems", "minLength",
        "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    }
)  # fmt: skip
_ONE: Final = ("items", "additionalProperties")
_MAPS: Final = ("properties", "patternProperties")
_PARTS: Final = ("allOf", "anyOf", "oneOf")


def rewritten(root: dict[str, Any]) -> dict[str, Any]:
    """``root``, checked before, in keywords that llguidance follows exactly. The original is not changed.

    Raises :class:`GrammarSpecError` for what only shows here.
    """
    return _Rewriting(root).run()


class _Rewriting:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._closed = root.get(CLOSED) is True
        self._references = References(root)
        self._steps = Steps()
        self._names: dict[tuple[int, bool], str] = {}
        """Schemas that references lead to → their new names."""
        self._waiting: list[tuple[str, Any, bool]] = []

    def run(self) -> dict[str, Any]:
        made = self._schema(self._root)
        definitions = {}
        while self._waiting:
            name, schema, part = self._waiting.pop()
            if (id(self._root), part) == (id(schema), False):
                definitions[name] = made
                made = {"$ref": f"#/$defs/{name}"}
            else:
                definitions[name] = self._schema(schema, part=part)
        return {**made, "$defs": definitions} if definitions else made

    def _resolve(self, reference: str) -> Any:
        return self._references.resolve(reference, "#")

    def _reference(self, reference: str, part: bool) -> str:
        return self._named(self._resolve(reference), part)

    def _named(self, schema: Any, part: bool) -> str:
        key = (id(schema), part)
        if key not in self._names:
            self._names[key] = str(len(self._names))
            self._waiting.append((self._names[key], schema, part))
        return f"#/$defs/{self._names[key]}"

    def _schema(self, schema: Any, *, part: bool = False) -> Any:
        """``part``: of a value that another schema describes too, and closes."""
        if not isinstance(schema, dict):
            return schema
        if schema.get("nullable") is True:  # OpenAPI 3.0
            alone = {key: value for key, value in schema.items() if key != "nullable"}
            return {"anyOf": [self._schema(alone, part=part), {"type": "null"}]}
        if schema.get("uniqueItems") is True:
            schema = self._unique(schema)
        if "propertyNames" in schema:
            schema = with_named_properties(schema, self._resolve, "#")
        sealed = schema.get("unevaluatedProperties") is False
        composed = is_composed(schema) or (sealed and any(keyword in schema for keyword in ("$ref", *_PARTS)))
        made = {key: value for key, value in schema.items() if key in _COPIED}
        for keyword in _ONE:
            if keyword in schema:
                made[keyword] = self._schema(schema[keyword])
        for keyword in _MAPS:
            if keyword in schema:
                made[keyword] = {name: self._schema(value) for name, value in schema[keyword].items()}
        if "prefixItems" in schema:
            made["prefixItems"] = [self._schema(value) for value in schema["prefixItems"]]
        inside = part or composed or "additionalProperties" in schema
        if "$ref" in schema:
            made["$ref"] = self._reference(schema["$ref"], inside)
        for keyword in _PARTS:
            if keyword in schema:
                only_one = keyword == "oneOf" and "anyOf" not in schema and self._only_one(schema, inside)
                as_part = inside or (keyword == "oneOf" and not only_one)
                made["anyOf" if only_one else keyword] = [
                    self._schema(value, part=as_part) for value in schema[keyword]
                ]
        further = self._texts(schema, made)
        if self._closed and not inside and "oneOf" in made:
            # It is the open cases that have to exclude each other: closed ones may do so where the schema's do not.
            further.append({"anyOf": [{"$ref": self._named(value, False)} for value in schema["oneOf"]]})
        if schema.get("unevaluatedItems") is False and "items" not in schema:
            made["items"] = False
        if sealed or (self._closed and not part):
            further += self._closing(schema, made, composed, sealed)
        if further:
            made["allOf"] = [*made.get("allOf", []), *further]
        return made

    def _only_one(self, schema: dict[str, Any], part: bool) -> bool:
        """Whether only one of the cases can be meant, as a discriminator says."""
        closed = self._closed and not part
        return "discriminator" in schema or are_disjoint(schema["oneOf"], self._resolve, self._steps, closed=closed)

    def _unique(self, schema: dict[str, Any]) -> dict[str, Any]:
        lists = unique_lists(schema, self._resolve, self._steps)
        if lists is None:
            return schema
        if not lists:
            raise GrammarSpecError("uniqueItems: there are fewer different items than minItems; leave one of them out")
        return {**rest(schema), "enum": lists}

    def _closing(
        self, schema: dict[str, Any], made: dict[str, Any], composed: bool, sealed: bool
    ) -> list[dict[str, Any]]:
        if "additionalProperties" in schema or (not sealed and ("enum" in schema or "const" in schema)):
            return []
        if not composed and not sealed:
            if any(keyword in schema for keyword in ("$ref", *_PARTS)):
                return []  # those are closed, each
            if "properties" not in schema and "patternProperties" not in schema:
                return []
        found = closing(listed_keys(schema, self._resolve, self._steps), sealed=sealed)
        if found is None:
            return []
        if composed:
            return [found]
        made["properties"] = found["properties"] | made.get("properties", {})
        made["additionalProperties"] = False
        return []

    def _texts(self, schema: dict[str, Any], made: dict[str, Any]) -> list[dict[str, Any]]:
        """What ``format`` and the like say of strings, beside the pattern in ``made``."""
        patterns = without_look_aheads(schema["pattern"]) if "pattern" in schema else []
        if (content := content_pattern(schema, self._resolve, self._steps)) is not None:
            patterns.append(content)
        if patterns:
            made["pattern"] = patterns[0]
        further: list[dict[str, Any]] = [{"pattern": pattern} for pattern in patterns[1:]]
        name = schema.get("format")
        if name in NATIVE:
            made["format"] = name
        elif name in EXACT and (name not in INTEGER or schema.get("type") == "integer"):
            further.append(EXACT[name])
        return further
