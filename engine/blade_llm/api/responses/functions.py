"""Tools in the flat form of ``/v1/responses`` as a chat has them, and ``tool_choice``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from blade_llm.api.common.errors import ApiError, bad_request
from blade_llm.api.generation.field_names import Place
from blade_llm.api.responses.requests import ResponsesRequest
from blade_llm.api.tools.custom import has_unenforced_format
from blade_llm.api.tools.offered import is_server_tool, unknown_tool
from blade_llm.api.tools.requests import CustomDefinition
from blade_llm.api.tools.use import MAX_TOOLS

_LONGEST_NAME: Final = 64
_LONGEST_SHARED: Final = 16_384
"""Characters of a namespace's description, as each of its tools gets a copy."""
_BETWEEN: Final = "__"
"""Between a namespace and the name of a function in it, where the former does not end so already."""
_SPECIFIED: Final[Mapping[str, tuple[str, ...]]] = {
    "function": ("name", "description", "parameters", "strict"),
    "custom": ("name", "description", "format"),
}
"""Type of a tool → what defines it."""


@dataclass(slots=True)
class ResponseTools:
    """The tools of one request."""

    chat: list[dict[str, Any]] = field(default_factory=list)
    """As a chat writes them, those in namespaces under names of their own."""
    places: list[Place] = field(default_factory=list)
    """Where each of these stands in the request."""
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name in the chat → namespace, and name in that."""
    ignored: list[str] = field(default_factory=list)
    """What changes nothing, as ``tools[2].web_search``."""


def read_tools(tools: list[dict[str, Any]]) -> ResponseTools:
    """Raises :class:`ApiError` 400 for what is no tool."""
    found = ResponseTools()
    for index, tool in enumerate(tools):
        where, kind = f"tools[{index}]", tool.get("type")
        if kind == "namespace":
            space = _string(tool, "name", where)
            inner = tool.get("tools")
            if not isinstance(inner, list) or not all(isinstance(each, dict) for each in inner):
                raise bad_request(f"{where}.tools must be a list of tools", "tools")
            if isinstance(shared := tool.get("description"), str) and len(shared) > _LONGEST_SHARED:
                message = f"{where}.description has {len(shared)} characters; send at most {_LONGEST_SHARED}"
                raise bad_request(message, "tools")
            for number, each in enumerate(inner):
                place = f"{where}.tools[{number}]"
                name = _string(each, "name", place)
                full = qualified(space, name)
                _add(found, {**each, "name": full, "description": _described(tool, each)}, place)
                found.places.append((index, number))
                found.namespaces[full] = (space, name)
        elif is_server_tool(kind):
            found.ignored.append(f"{where}.{kind}")
        else:
            _add(found, tool, where)
            found.places.append((index,))
    return found


def qualified(namespace: str, name: str) -> str:
    """The name that the model calls a function of a namespace by."""
    full = f"{namespace}{'' if namespace.endswith(_BETWEEN) else _BETWEEN}{name}"
    if len(full) <= _LONGEST_NAME:
        return full
    digest = hashlib.sha256(full.encode()).hexdigest()[:8]
    return f"{full[: _LONGEST_NAME - len(digest) - 1]}_{digest}"


def chat_tools(request: ResponsesRequest, tools: ResponseTools) -> dict[str, Any]:
    """``tools`` and ``tool_choice`` of a chat request; empty without tools. Raises :class:`ApiError` 400."""
    choice: Any = request.tool_choice
    if isinstance(choice, dict):
        match choice.get("type"):
            case ("function" | "custom") as kind if isinstance(choice.get("name"), str):
                choice = {"type": kind, kind: {"name": _chosen_name(choice)}}
            case "allowed_tools":
                choice = _allowed(choice)
            case kind:
                raise _cannot_be_forced(kind)
    if not tools.chat:
        if choice not in ("auto", "none"):
            raise bad_request("tool_choice needs tools", "tool_choice")
        return {}
    return {"tools": tools.chat, "tool_choice": choice, "parallel_tool_calls": request.parallel_tool_calls}


def echoed_tools(request: ResponsesRequest) -> list[dict[str, Any]]:
    """The tools as a response repeats them, with defaults filled in."""
    defaults = {"strict": False, "parameters": None, "description": None}
    return [{**defaults, **tool} if tool.get("type") == "function" else tool for tool in request.tools]


def _add(found: ResponseTools, tool: dict[str, Any], where: str) -> None:
    kind = tool.get("type")
    if not isinstance(kind, str) or kind not in _SPECIFIED:
        raise unknown_tool(kind, where)
    if len(found.chat) == MAX_TOOLS:
        raise bad_request(f"tools holds more than {MAX_TOOLS} functions; send at most {MAX_TOOLS}", "tools")
    if isinstance(tool.get(kind), dict):
        tool = {**tool, **tool[kind]}  # as a chat has it
    _string(tool, "name", where)
    if tool.get("defer_loading"):
        raise bad_request(f"{where}: defer_loading is not supported; leave it out", "tools", "unsupported")
    given = {name: tool[name] for name in _SPECIFIED[kind] if tool.get(name) is not None}
    if kind == "custom" and _is_only_described(given.get("format")):
        found.ignored.append(f"{where}.format")
    found.chat.append({"type": kind, kind: given})


def _is_only_described(form: Any) -> bool:
    return isinstance(form, dict) and has_unenforced_format(CustomDefinition(name="", format=form))


def _described(namespace: dict[str, Any], tool: dict[str, Any]) -> str | None:
    texts = [each.get("description") for each in (namespace, tool)]
    return "\n\n".join(text for text in texts if isinstance(text, str) and text) or None


def _allowed(choice: dict[str, Any]) -> dict[str, Any]:
    mode, allowed = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required") or not isinstance(allowed, list):
        raise bad_request("tool_choice: allowed_tools needs mode, auto or required, and tools", "tool_choice")
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [*_allowed_names(allowed)]}}


def _allowed_names(allowed: list[Any]) -> Iterator[dict[str, Any]]:
    for entry in allowed:
        name = _chosen_name(entry) if isinstance(entry, dict) else None
        yield {"type": "function", "function": {"name": name}}


def _chosen_name(choice: dict[str, Any]) -> Any:
    """The name in the chat of a tool that is chosen."""
    space, name = choice.get("namespace"), choice.get("name")
    return qualified(space, name) if isinstance(space, str) and isinstance(name, str) else name


def _string(tool: dict[str, Any], name: str, where: str) -> str:
    value = tool.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{where}.{name} must be a string", "tools")
    return value


def _cannot_be_forced(kind: Any) -> ApiError:
    message = f"tool_choice: {kind!r} cannot be called, as no tool runs on the server; choose one of your functions"
    return bad_request(message, "tool_choice", "unsupported")
