"""Tools as Anthropic's API declares them as those of a chat, and ``tool_choice``."""

from __future__ import annotations

import re
from typing import Any, Final

from blade_llm.api.common.errors import bad_request
from blade_llm.api.generation.field_names import Place
from blade_llm.api.messages.requests import PromptFields

_ON_SERVER: Final = re.compile(
    r"(web_search|web_fetch|code_execution|tool_search_tool(_\w+?)?|advisor)_\d{8}|mcp_toolset"
)
"""Tools that Anthropic's servers run themselves: a model that is not offered one answers without."""


def chat_tools(request: PromptFields) -> dict[str, Any]:
    """``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a chat request; empty without tools.

    Raises :class:`ApiError` 400.
    """
    tools = [
        _function(tool, f"tools[{index}]")
        for index, tool in enumerate(request.tools)
        if not _runs_on_server(tool.get("type"))
    ]
    choice = request.tool_choice
    if not tools:
        if choice is not None and choice.type in ("any", "tool"):
            raise bad_request("tool_choice asks for a call, but there are no tools; add tools", "tool_choice")
        return {}
    if choice is None:
        return {"tools": tools}
    chosen: Any = {"auto": "auto", "any": "required", "none": "none"}.get(choice.type)
    if choice.type == "tool":
        if choice.name is None:
            raise bad_request("tool_choice of type tool needs a name", "tool_choice")
        chosen = {"type": "function", "function": {"name": choice.name}}
    return {"tools": tools, "tool_choice": chosen, "parallel_tool_calls": not choice.disable_parallel_tool_use}


def places(request: PromptFields) -> list[Place]:
    """Where those that a chat request has stand in the request."""
    return [(index,) for index, tool in enumerate(request.tools) if not _runs_on_server(tool.get("type"))]


def left_out(request: PromptFields) -> list[str]:
    """The declared tools that are not offered to the model, as ``tools[2].web_search_20250305``."""
    return [
        f"tools[{index}].{tool['type']}"
        for index, tool in enumerate(request.tools)
        if _runs_on_server(tool.get("type"))
    ]


def _runs_on_server(kind: Any) -> bool:
    return isinstance(kind, str) and _ON_SERVER.fullmatch(kind) is not None


def _function(tool: dict[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        message = f"{where}: {kind!r} is not supported; declare a tool of your own, with name and input_schema"
        raise bad_request(message, "tools", "unsupported")
    if not isinstance(tool.get("name"), str):
        raise bad_request(f"{where}.name must be a string", "tools")
    if not isinstance(tool.get("input_schema"), dict):
        raise bad_request(f"{where}.input_schema must be a JSON Schema", "tools")
    if tool.get("defer_loading"):
        raise bad_request(f"{where}: defer_loading is not supported; leave it out", "tools", "unsupported")
    known = {"name": "name", "description": "description", "input_schema": "parameters", "strict": "strict"}
    function = {ours: tool[name] for name, ours in known.items() if tool.get(name) is not None}
    return {"type": "function", "function": function}
