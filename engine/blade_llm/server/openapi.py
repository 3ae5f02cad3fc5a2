"""``/openapi.json``: written from the routes and from the types that requests are decoded with.

What the decoder takes beyond JSON Schema's view of a type stands here too: null for every field that may be left out,
``"true"`` for true, fields that are ignored, and those that are refused unless their value requests nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from blade_llm.api.common.context import ServerContext
from blade_llm.api.embeddings import MAX_INPUTS, EmbeddingRequest
from blade_llm.api.generation.prompt_tokens import MAX_CHOICES
from blade_llm.api.generation.requests import SamplingFields
from blade_llm.api.images.serving import NoImages
from blade_llm.api.messages.requests import CountTokensRequest, MessagesRequest
from blade_llm.api.messages.schemas import FIELDS as MESSAGE_FIELDS
from blade_llm.api.responses.requests import ResponsesRequest
from blade_llm.api.responses.schemas import FIELDS as RESPONSE_FIELDS
from blade_llm.api.tools.schemas import TOOL_CHOICE, TOOLS
from blade_llm.engine.version import package_version
from blade_llm.multimodal.settings import DETAILS
from blade_llm.server.field_support import ignored_by, refused_by
from blade_llm.server.routes import Route
from blade_protocol import anthropic
from blade_protocol.openai import ErrorBody

_SCHEMAS: Final = "#/components/schemas/"
_BODY_ERRORS: Final = (400, 404, 413, 415, 503)
_ERRORS: Final = {
    400: "The request is wrong; the message says what to change",
    404: "No such model",
    413: "The body is too large",
    415: "The body is not JSON",
    503: "Nothing is served now; retry elsewhere or later",
}
_NULL: Final = {"type": "null"}
_EVENT: Final = {
    "description": "One event: a chunk as JSON, and at the end [DONE]",
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string"}},
}


def describe(routes: Iterable[Route], context: ServerContext) -> dict[str, Any]:
    """The OpenAPI document of one server: names of models and the size of the vocabulary are its own."""
    routes = list(routes)
    bodies = [route.body for route in routes if route.body is not None]
    responses = [route.response for route in routes if route.response is not None]
    described_types = [*bodies, *responses, ErrorBody, anthropic.MessageError]
    _, components = msgspec.json.schema_components(described_types, ref_template=_SCHEMAS + "{name}")
    for body in bodies:
        components[body.__name__] = _request(components[body.__name__], body, context)
    described: dict[str, dict[str, Any]] = {}
    for route in routes:
        described.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "BladeLLM", "version": package_version()},
        "paths": described,
        "components": {"schemas": components},
    }


def _operation(route: Route) -> dict[str, Any]:
    content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if route.response is not None:
        content = {"application/json": {"schema": _reference(route.response)}}
    if route.streams:
        content["text/event-stream"] = {"schema": _EVENT}
    name = re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_")
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": (route.handler.__doc__ or "").partition("\n")[0],
        "responses": {"200": {"description": "The response", "content": content}},
    }
    shape = anthropic.MessageError if anthropic.speaks_anthropic(route.path) else ErrorBody
    error = {"application/json": {"schema": _reference(shape)}}
    for status in sorted({*route.errors, *(_BODY_ERRORS if route.body else ())}):
        operation["responses"][str(status)] = {"description": _ERRORS[status], "content": error}
    if route.body is not None:
        content = {"application/json": {"schema": _reference(route.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    if parameters := re.findall(r"{(\w+)}", route.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in parameters
        ]
    return operation


def _reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _SCHEMAS + kind.__name__}


def _request(schema: dict[str, Any], body: type[msgspec.Struct], context: ServerContext) -> dict[str, Any]:
    """What :func:`~blade_llm.api.common.fields.parse` takes for a ``body``."""
    required = schema.get("required", [])
    own = _own_schemas(body, context)
    properties = {}
    for name, given in schema["properties"].items():
        known = own.get(name, given)
        properties[name] = known if name in required else _optional(known)
    for name, reason in ignored_by(body).items():
        properties.setdefault(name, {"description": f"Ignored: {reason}."})
    for name, refusal in refused_by(body).items():
        properties.setdefault(name, {"description": f"Refused: {refusal.reason}.", "enum": [None, *refusal.off]})
    return {**schema, "properties": properties, "additionalProperties": not context.strict_fields}


def _optional(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema``, or null; ``default`` and ``description`` stay outside."""
    outside = {key: value for key, value in schema.items() if key in ("default", "description")}
    inside = {key: value for key, value in schema.items() if key not in outside}
    choices = list(inside["anyOf"]) if set(inside) == {"anyOf"} else [inside]
    if {"type": "boolean"} in choices:
        choices.append({"enum": ["true", "false"]})
    if _NULL not in choices:
        choices.append(_NULL)
    return {"anyOf": choices, **outside}


def _own_schemas(body: type[msgspec.Struct], context: ServerContext) -> dict[str, Any]:
    """Fields that this server takes more narrowly than their type says."""
    token_id = {"type": "integer", "minimum": 0, "maximum": context.model.vocab_size - 1}
    text = {"type": "string", "minLength": 1}
    ids = {"type": "array", "items": token_id, "minItems": 1}

    def prompts(most: int) -> dict[str, Any]:
        return {
            "anyOf": [
                text,
                ids,
                {"type": "array", "items": text, "minItems": 1, "maxItems": most},
                {"type": "array", "items": ids, "minItems": 1, "maxItems": most},
            ]
        }

    found: dict[str, Any] = {"model": {"enum": ["", *context.model.names, *sorted(context.model.aliases)]}}
    if "messages" in body.__struct_fields__:
        message = MESSAGE
        if not isinstance(context.images, NoImages):
            message = MESSAGE_WITH_IMAGES if context.images.video is None else MESSAGE_WITH_VIDEOS
        found["messages"] = {"type": "array", "minItems": 1, "items": message}
    if issubclass(body, SamplingFields):
        found["stop_token_ids"] = {"type": "array", "items": token_id, "maxItems": 128, "default": []}
        found["prompt"] = prompts(MAX_CHOICES)
    if "truncate_prompt_tokens" in body.__struct_fields__:
        found["truncate_prompt_tokens"] = {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]}
    if body is ResponsesRequest:
        found |= RESPONSE_FIELDS
    elif body in (MessagesRequest, CountTokensRequest):
        found |= MESSAGE_FIELDS
    elif "tools" in body.__struct_fields__:
        found |= {"tools": TOOLS, "tool_choice": TOOL_CHOICE}
    if body is EmbeddingRequest:
        found["input"] = prompts(MAX_INPUTS)
    found["tokens"] = {"type": "array", "items": token_id}
    return found


def _part(kind: str) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["type", kind],
        "properties": {"type": {"const": kind}, kind: {"type": "string"}},
    }


_PIXELS: Final[dict[str, Any]] = {"anyOf": [{"type": "integer", "minimum": 1}, _NULL]}
_BOUNDS: Final = {"min_pixels": _PIXELS, "max_pixels": _PIXELS}
_FPS: Final[dict[str, Any]] = {"anyOf": [{"type": "number", "minimum": 1e-3, "maximum": 1e3}, _NULL]}


def _file(kind: str, **fields: dict[str, Any]) -> dict[str, Any]:
    """A part with a URL, or an object of one and ``fields``."""
    found = _part(kind)
    properties = {"url": {"type": "string"}, **fields}
    found["properties"][kind] = {
        "anyOf": [{"type": "string"}, {"type": "object", "required": ["url"], "properties": properties}]
    }
    return found


_IMAGE: Final = _file("image_url", detail={"enum": [None, *DETAILS]}, **_BOUNDS)
_VIDEO_FILE: Final = _file("video_url", fps=_FPS, **_BOUNDS)
_FRAMES: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "video"],
    "properties": {
        "type": {"const": "video"},
        "video": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "fps": _FPS,
        "sample_fps": _FPS,
        **_BOUNDS,
    },
}


def _content(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "string"}, {"type": "array", "items": {"anyOf": [*parts]}}]


_CALL: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["id", "function"],
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "arguments": {"type": ["string", "object"]}},
        },
    },
}
_NO_CALLS: Final[dict[str, Any]] = {"anyOf": [{"type": "array", "maxItems": 0}, _NULL]}


def _message(*seen: dict[str, Any]) -> dict[str, Any]:
    """A message. ``seen``: the kinds of parts that users and tools may send beside texts."""
    text = _part("text")
    return {
        "anyOf": [
            *(
                _of_client(roles, _content(text, *parts))
                for roles, parts in ((["system", "developer"], ()), (["user"], seen))
            ),
            {
                "type": "object",
                "required": ["role"],
                "properties": {
                    "role": {"const": "assistant"},
                    "content": {"anyOf": [*_content(text, _part("refusal")), _NULL]},
                    "tool_calls": {"anyOf": [{"type": "array", "items": _CALL}, _NULL]},
                    "function_call": _NULL,
                },
            },
            _of_client(["tool"], _content(text, *seen), tool_call_id={"type": "string"}),
        ]
    }


def _of_client(roles: list[str], content: list[dict[str, Any]], **more: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["role", "content", *more],
        "properties": {
            "role": {"enum": roles},
            "content": {"anyOf": content},
            **more,
            "tool_calls": _NO_CALLS,
            "function_call": _NULL,
        },
    }


MESSAGE: Final[dict[str, Any]] = _message()
MESSAGE_WITH_IMAGES: Final[dict[str, Any]] = _message(_IMAGE)
MESSAGE_WITH_VIDEOS: Final[dict[str, Any]] = _message(_IMAGE, _FRAMES, _VIDEO_FILE)
