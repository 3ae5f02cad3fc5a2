"""JSON Schemas of the fields that a response's request takes more narrowly than their types say."""

from __future__ import annotations

from typing import Any, Final

from blade_llm.api.responses.conversation import TEXT_PARTS
from blade_llm.multimodal.settings import DETAILS

_TEXT: Final[dict[str, Any]] = {"type": "string"}


def _item(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


_TEXT_PARTS: Final = (
    _item(["type", "text"], type={"enum": [*TEXT_PARTS]}, text=_TEXT),
    _item(["type", "refusal"], type={"const": "refusal"}, refusal=_TEXT),
)
_IMAGE: Final[dict[str, Any]] = _item(
    ["type", "image_url"],
    type={"const": "input_image"},
    image_url=_TEXT,
    file_id={"type": "null"},
    detail={"enum": [*DETAILS, None]},
)
_SAID: Final[dict[str, Any]] = {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": [*_TEXT_PARTS]}}]}
_SHOWN: Final[dict[str, Any]] = {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": [*_TEXT_PARTS, _IMAGE]}}]}
_SAID_OR_NOT: Final[dict[str, Any]] = {"anyOf": [*_SAID["anyOf"], {"type": "null"}]}
ITEM: Final[dict[str, Any]] = {
    "anyOf": [
        _item(
            ["role", "content"],
            type={"enum": ["message", None]},
            role={"enum": ["system", "developer", "assistant"]},
            content=_SAID,
        ),
        _item(["role", "content"], type={"enum": ["message", None]}, role={"const": "user"}, content=_SHOWN),
        _item(["type"], type={"const": "reasoning"}, content=_SAID_OR_NOT, summary=_SAID_OR_NOT),
        _item(
            ["type", "call_id", "name", "arguments"],
            type={"const": "function_call"},
            call_id=_TEXT,
            name=_TEXT,
            arguments=_TEXT,
        ),
        _item(
            ["type", "call_id", "name", "input"],
            type={"const": "custom_tool_call"},
            call_id=_TEXT,
            name=_TEXT,
            input=_TEXT,
        ),
        _item(
            ["type", "call_id", "output"],
            type={"enum": ["function_call_output", "custom_tool_call_output"]},
            call_id=_TEXT,
            output=_SHOWN,
        ),
    ]
}
"""One of ``input``, as ``conversation.messages_of`` takes it."""
_FUNCTION: Final[dict[str, Any]] = _item(
    ["type", "name"],
    type={"const": "function"},
    name={"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
    description={"type": ["string", "null"]},
    parameters={"type": ["object", "null"]},
    strict={"type": ["boolean", "null"]},
)
_GRAMMAR: Final[dict[str, Any]] = {
    "anyOf": [
        _item(["type"], type={"const": "text"}),
        _item(
            ["type", "syntax", "definition"],
            type={"const": "grammar"},
            syntax={"const": "lark"},
            definition=_TEXT,
        ),
        {"type": "null"},
    ]
}
_CUSTOM: Final[dict[str, Any]] = _item(
    ["type", "name"],
    type={"const": "custom"},
    name=_FUNCTION["properties"]["name"],
    description={"type": ["string", "null"]},
    format=_GRAMMAR,
)
_CALLABLE: Final[dict[str, Any]] = {"anyOf": [_FUNCTION, _CUSTOM]}
_NAMESPACE: Final[dict[str, Any]] = _item(
    ["type", "name", "tools"],
    type={"const": "namespace"},
    name={"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
    description={"type": ["string", "null"]},
    tools={"type": "array", "items": _CALLABLE},
)
_SERVER_TOOL: Final[dict[str, Any]] = _item(
    ["type"],
    type={"enum": ["web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp"]},
)
_FORMAT: Final[dict[str, Any]] = {
    "anyOf": [
        _item(["type"], type={"enum": ["text", "json_object"]}),
        _item(["type", "name", "schema"], type={"const": "json_schema"}, name=_TEXT, schema={"type": "object"}),
    ]
}
FIELDS: Final[dict[str, dict[str, Any]]] = {
    "input": {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": ITEM}]},
    "tools": {"type": "array", "items": {"anyOf": [*_CALLABLE["anyOf"], _NAMESPACE, _SERVER_TOOL]}},
    "tool_choice": {
        "anyOf": [
            {"enum": ["none", "auto", "required"]},
            _item(["type", "name"], type={"enum": ["function", "custom"]}, name=_TEXT),
            _item(
                ["type", "mode", "tools"],
                type={"const": "allowed_tools"},
                mode={"enum": ["auto", "required"]},
                tools={"type": "array", "items": _item(["type", "name"], type={"const": "function"}, name=_TEXT)},
            ),
        ]
    },
    "text": {
        "type": "object",
        "properties": {"format": _FORMAT, "verbosity": {"enum": ["low", "medium", "high", None]}},
    },
}
"""JSON Schema by field; the other fields follow from their types."""
