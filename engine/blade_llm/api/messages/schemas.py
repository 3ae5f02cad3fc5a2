"""JSON Schemas of the fields that a message's request takes more narrowly than their types say."""

from __future__ import annotations

from typing import Any, Final

from blade_llm.api.messages.images import MEDIA_TYPES

_TEXT: Final[dict[str, Any]] = {"type": "string"}


def _block(kind: str, required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["type", *required],
        "properties": {"type": {"const": kind}, **properties},
    }


def _content(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": [*blocks]}}]}


_TEXT_BLOCK: Final = _block("text", ["text"], text=_TEXT)
_TEXTS: Final = _content(_TEXT_BLOCK)
_SOURCE: Final[dict[str, Any]] = {
    "anyOf": [
        _block("base64", ["media_type", "data"], media_type={"enum": [*MEDIA_TYPES]}, data=_TEXT),
        _block("url", ["url"], url=_TEXT),
    ]
}
_IMAGE: Final = _block("image", ["source"], source=_SOURCE)
_SHOWN: Final[dict[str, Any]] = {"anyOf": [*_content(_TEXT_BLOCK, _IMAGE)["anyOf"], {"type": "null"}]}
_RESULT: Final = _block("tool_result", ["tool_use_id"], tool_use_id=_TEXT, content=_SHOWN)
_SAID: Final = (
    _TEXT_BLOCK,
    _block("thinking", ["thinking"], thinking=_TEXT),
    _block("redacted_thinking", []),
    _block("tool_use", ["id", "name"], id=_TEXT, name=_TEXT, input={"type": "object"}),
)


def _message(role: str, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"const": role}, "content": content},
    }


MESSAGE: Final[dict[str, Any]] = {
    "anyOf": [
        _message("user", _content(_TEXT_BLOCK, _IMAGE, _RESULT)),
        _message("assistant", _content(*_SAID)),
        _message("system", _TEXTS),
    ]
}
"""One of ``messages``, as ``conversation.messages_of`` takes it."""
_TOOL: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["name", "input_schema"],
    "properties": {
        "type": {"enum": ["custom", None]},
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
        "description": {"type": ["string", "null"]},
        "input_schema": {"type": "object"},
        "strict": {"type": ["boolean", "null"]},
    },
}
FIELDS: Final[dict[str, dict[str, Any]]] = {
    "messages": {"type": "array", "minItems": 1, "items": MESSAGE},
    "system": _TEXTS,
    "tools": {"type": "array", "items": _TOOL},
}
"""JSON Schema by field; the other fields follow from their types."""
