"""What OpenAI's specification says of fields in words only, as JSON Schema, so that drawn values are as it means."""

from __future__ import annotations

from typing import Any, Final

_NAME: Final = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,24}$"}
_TOKEN: Final = {"type": "integer", "minimum": 3, "maximum": 383}
"""Ids of the vocabulary of the model that is asked."""
_LENGTH: Final = {"type": "integer", "minimum": 1, "maximum": 24}
_EXACT: Final = 2**53
"""Integers up to here are the same number in every language."""
_PRINTED: Final = {"type": "string", "pattern": "^[^\\x00-\\x1f]*$"}
"""Texts that JSON writes as they are: where a schema has others is a constraint of its own."""
_SCHEMAS: Final[dict[str, Any]] = {
    "JsonEnum": {"anyOf": [_PRINTED, {"type": "integer", "minimum": -_EXACT, "maximum": _EXACT}]},
    "JsonType": {"enum": ["string", "integer", "number", "boolean", "null"]},
    "JsonProperty": {
        "anyOf": [
            {"type": "object", "properties": {"type": {"$ref": "#/components/schemas/JsonType"}}, "required": ["type"]},
            {
                "type": "object",
                "properties": {
                    "enum": {"type": "array", "items": {"$ref": "#/components/schemas/JsonEnum"}, "minItems": 1},
                    "description": {"type": "string"},
                },
                "required": ["enum"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {
                    "type": {"const": "array"},
                    "items": {
                        "type": "object",
                        "properties": {"type": {"$ref": "#/components/schemas/JsonType"}},
                        "required": ["type"],
                        "additionalProperties": False,
                    },
                },
                "required": ["type", "items"],
                "additionalProperties": False,
            },
        ]
    },
    "JsonObject": {
        "type": "object",
        "properties": {
            "type": {"const": "object"},
            "properties": {
                "type": "object",
                "propertyNames": _PRINTED,
                "additionalProperties": {"$ref": "#/components/schemas/JsonProperty"},
            },
            "additionalProperties": {"type": "boolean"},
            "title": {"type": "string"},
        },
        "required": ["type", "properties"],
        "additionalProperties": False,
    },
}
"""A part of JSON Schema, where the specification has any object for a schema."""
_OBJECT: Final = {"$ref": "#/components/schemas/JsonObject"}


def add(schemas: dict[str, Any], model: str) -> None:
    """Change ``schemas``, the document's by name. ``model``: the name that requests send."""
    schemas.update(_SCHEMAS)
    for name in ("ModelIdsShared", "ModelIdsResponses"):
        schemas[name] = {"enum": [model]}
    for name in ("FunctionParameters", "ResponseFormatJsonSchemaSchema", "EmptyModelParam"):
        schemas[name] = _OBJECT
    chat = schemas["CreateChatCompletionRequest"]["allOf"][-1]["properties"]
    completion = schemas["CreateCompletionRequest"]["properties"]
    embedding = schemas["CreateEmbeddingRequest"]["properties"]
    _models(completion, embedding, model)
    _lengths(chat, completion, schemas)
    _tokens(chat, completion, embedding)
    _names(schemas)


def add_parameters(parameters: list[dict[str, Any]]) -> None:
    """Of a page: "Limit can range between 1 and 100". And ids in paths have no control characters."""
    for each in parameters:
        if each["name"] == "limit":
            each["schema"] = {"type": "integer", "minimum": 1, "maximum": 100}
        elif each["in"] == "path":
            each["schema"] = {**_PRINTED, "minLength": 1, "maxLength": 24}


def _models(completion: dict[str, Any], embedding: dict[str, Any], model: str) -> None:
    for fields in (completion, embedding):
        fields["model"] = {"enum": [model]}


def _lengths(chat: dict[str, Any], completion: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Tokens to generate: at least one, and few, so that requests are short."""
    for fields, name in ((chat, "max_tokens"), (chat, "max_completion_tokens")):
        fields[name] = {"anyOf": [_LENGTH, {"type": "null"}]}
    completion["max_tokens"] = {"anyOf": [{**_LENGTH, "minimum": 0}, {"type": "null"}]}
    response = schemas["CreateResponse"]["allOf"][-1]
    response["properties"]["max_output_tokens"]["anyOf"][0]["maximum"] = 24
    response["required"] = ["model", "input"]
    schemas["InputParam"]["oneOf"][1]["minItems"] = 1


def _tokens(chat: dict[str, Any], completion: dict[str, Any], embedding: dict[str, Any]) -> None:
    """Token ids, and biases: "an associated bias value from -100 to 100"."""
    for fields in (chat, completion):
        fields["logit_bias"] = {
            "anyOf": [
                {
                    "type": "object",
                    "propertyNames": {"pattern": "^([3-9]|[1-9][0-9]|[12][0-9][0-9]|3[0-7][0-9])$"},
                    "additionalProperties": {"type": "integer", "minimum": -100, "maximum": 100},
                },
                {"type": "null"},
            ]
        }
    for form in (*_forms(completion["prompt"]), *_forms(embedding["input"])):
        if form.get("items", {}).get("type") == "integer":
            form["items"] = _TOKEN
        elif form.get("items", {}).get("type") == "array":
            form["items"]["items"] = _TOKEN


def _forms(schema: dict[str, Any]) -> list[dict[str, Any]]:
    for each in (schema, *schema.get("anyOf", ())):
        if "oneOf" in each:
            return list(each["oneOf"])
    raise AssertionError(schema)


def _names(schemas: dict[str, Any]) -> None:
    """Of functions: "Must be a-z, A-Z, 0-9, or contain underscores and dashes"."""
    schemas["FunctionObject"]["properties"]["name"] = _NAME
    schemas["CustomToolChatCompletions"]["properties"]["custom"]["properties"]["name"] = _NAME
    for name in ("FunctionTool", "CustomToolParam", "NamespaceToolParam"):
        schemas[name]["properties"]["name"] = _NAME
