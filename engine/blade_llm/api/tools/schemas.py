"""JSON Schemas of a chat's ``tools`` and ``tool_choice``, which the types say less narrowly than they are taken."""

from __future__ import annotations

from typing import Any, Final

_TEXT_OR_NOT: Final[dict[str, Any]] = {"type": ["string", "null"]}
_NAME: Final[dict[str, Any]] = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
_STRICT: Final[dict[str, Any]] = {"type": ["boolean", "null"]}


def _object(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


_FUNCTION: Final = _object(
    ["type", "function"],
    type={"const": "function"},
    function=_object(
        ["name"], name=_NAME, description=_TEXT_OR_NOT, parameters={"type": ["object", "null"]}, strict=_STRICT
    ),
    strict=_STRICT,
)
_GRAMMAR: Final = _object(
    ["type", "grammar"],
    type={"const": "grammar"},
    grammar=_object(["syntax", "definition"], syntax={"const": "lark"}, definition={"type": "string"}),
)
_CUSTOM: Final = _object(
    ["type", "custom"],
    type={"const": "custom"},
    custom=_object(
        ["name"],
        name=_NAME,
        description=_TEXT_OR_NOT,
        format={"anyOf": [_object(["type"], type={"const": "text"}), _GRAMMAR, {"type": "null"}]},
    ),
)
_SERVER_TOOL: Final = _object(
    ["type"],
    type={"enum": ["web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp"]},
)
TOOLS: Final[dict[str, Any]] = {
    "type": "array",
    "items": {"anyOf": [_FUNCTION, _CUSTOM, _SERVER_TOOL]},
    "default": [],
    "description": "What the model may call.",
}
_NAMED: Final = _object(["name"], name=_NAME)
TOOL_CHOICE: Final[dict[str, Any]] = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        _object(["type", "function"], type={"const": "function"}, function=_NAMED),
        _object(["type", "custom"], type={"const": "custom"}, custom=_NAMED),
        _object(
            ["type", "allowed_tools"],
            type={"const": "allowed_tools"},
            allowed_tools=_object(
                ["mode", "tools"],
                mode={"enum": ["auto", "required"]},
                tools={"type": "array", "items": {"type": "object"}},
            ),
        ),
    ],
    "description": "Whether the model may call, or must, or which tool; auto when left out.",
}
