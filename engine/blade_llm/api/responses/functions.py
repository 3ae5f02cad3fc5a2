"""Tools in the flat form of ``/v1/responses`` as a chat has them, and ``tool_choice``."""

from __future__ import annotations

from typing import Any

from blade_llm.api.common.errors import bad_request
from blade_llm.api.responses.requests import ResponsesRequest


def chat_tools(request: ResponsesRequest) -> dict[str, Any]:
    """``tools`` and ``tool_choice`` of a chat request; empty without tools. Raises :class:`ApiError` 400."""
    tools = [_function(tool, f"tools[{index}]") for index, tool in enumerate(request.tools)]
    choice: Any = request.tool_choice
    if isinstance(choice, dict):
        match choice.get("type"):
            case "function" if isinstance(choice.get("name"), str):
                choice = {"type": "function", "function": {"name": choice["name"]}}
            case "allowed_tools":
                tools, choice = _allowed(tools, choice)
            case kind:
                raise _no_built_in(kind, "tool_choice", "tool_choice")
    if not tools:
        if choice not in ("auto", "none"):
            raise bad_request("tool_choice needs tools", "tool_choice")
        return {}
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": request.parallel_tool_calls}


def echoed_tools(request: ResponsesRequest) -> list[dict[str, Any]]:
    """The tools as a response repeats them, with defaults filled in."""
    return [{"strict": False, "parameters": None, "description": None, **tool} for tool in request.tools]


def _function(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise _no_built_in(tool.get("type"), where, "tools")
    if not isinstance(tool.get("name"), str):
        raise bad_request(f"{where}.name must be a string", "tools")
    if tool.get("defer_loading"):
        raise bad_request(f"{where}: defer_loading is not supported; leave it out", "tools", "unsupported")
    known = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in known if tool.get(name) is not None}}


def _allowed(tools: list[dict[str, Any]], choice: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The allowed functions: only these reach the model, which has the same effect."""
    mode, allowed = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required") or not isinstance(allowed, list):
        raise bad_request("tool_choice: allowed_tools needs mode, auto or required, and tools", "tool_choice")
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in allowed]
    known = [tool["function"]["name"] for tool in tools]
    if missing := [name for name in names if name not in known]:
        raise bad_request(f"tool_choice: {missing[0]!r} is not among tools", "tool_choice")
    return [tool for tool in tools if tool["function"]["name"] in names], mode


def _no_built_in(kind: Any, where: str, param: str) -> Exception:
    message = f"{where}: {kind!r} is not supported; only functions are, which run at the client"
    return bad_request(message, param, "unsupported")
