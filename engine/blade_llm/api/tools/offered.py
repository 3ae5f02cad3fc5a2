"""The elements of ``tools`` as functions: freeform ones too, and without those that OpenAI runs itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from blade_llm.api.common.errors import ApiError, bad_request, shortened
from blade_llm.api.tools.custom import as_function, has_unenforced_format
from blade_llm.api.tools.requests import FunctionDefinition, NamedToolChoice, Tool, ToolChoice

_SERVER_TOOLS: Final = re.compile(
    r"(web_search(_preview)?|computer(_use)?(_preview)?|file_search|code_interpreter|image_generation|local_shell|shell"
    r"|mcp|apply_patch|tool_search)(_\d{4}_\d{2}_\d{2})?"
)
"""Types of tools that the server or OpenAI's own models know without a definition; some have a date behind them."""


@dataclass(slots=True)
class Offered:
    """What one request offers."""

    functions: list[FunctionDefinition] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Where each stands in ``tools``."""
    freeform: set[str] = field(default_factory=set)
    """Names of the tools that take a text."""


def read_offered(tools: Sequence[Tool]) -> Offered:
    """Raises :class:`ApiError` 400 for what is no tool."""
    found = Offered()
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.type == "function":
            if tool.function is None:
                raise bad_request(f'{where} needs "function", an object with its name and parameters', "tools")
            function = tool.function
            if function.strict is None and tool.strict is not None:
                function = FunctionDefinition(
                    name=function.name,
                    description=function.description,
                    parameters=function.parameters,
                    strict=tool.strict,
                )
        elif tool.type == "custom":
            if tool.custom is None:
                raise bad_request(f'{where} needs "custom", an object with its name', "tools")
            function = as_function(tool.custom, where)
            found.freeform.add(function.name)
        elif is_server_tool(tool.type):
            continue
        else:
            raise unknown_tool(tool.type, where)
        found.functions.append(function)
        found.places.append(index)
    return found


def ignored_tools(tools: Iterable[Tool]) -> list[str]:
    """What of ``tools`` changes nothing, as ``tools[2].web_search``."""
    return [
        *(f"tools[{index}].{tool.type}" for index, tool in enumerate(tools) if is_server_tool(tool.type)),
        *(
            f"tools[{index}].format"
            for index, tool in enumerate(tools)
            if tool.custom is not None and has_unenforced_format(tool.custom)
        ),
    ]


def is_server_tool(kind: Any) -> bool:
    """A tool that would run on the server, where nothing runs: it may be declared, as long as no call is forced."""
    return isinstance(kind, str) and _SERVER_TOOLS.fullmatch(kind) is not None


def unknown_tool(kind: Any, where: str) -> ApiError:
    """400 for a type of tool that nobody knows."""
    return bad_request(f"{where}.type must be function or custom, not {shortened(str(kind))!r}", "tools", "unsupported")


def chosen(offered: Offered, choice: ToolChoice | None) -> tuple[Offered, ToolChoice | None]:
    """The tools that ``choice`` leaves, and what else it says.

    Raises :class:`ApiError` 400 that names ``tool_choice``.
    """
    if not isinstance(choice, NamedToolChoice):
        return offered, choice
    if choice.type == "allowed_tools":
        if choice.allowed_tools is None:
            raise bad_request("tool_choice needs allowed_tools, an object with mode and tools", "tool_choice")
        names = [_name(entry) for entry in choice.allowed_tools.tools]
        return restricted(offered, names), choice.allowed_tools.mode
    named = choice.function if choice.type == "function" else choice.custom
    if named is None:
        raise bad_request(f"tool_choice needs {choice.type}, an object with the name", "tool_choice")
    return offered, choice


def restricted(offered: Offered, names: Sequence[Any]) -> Offered:
    """Only the allowed ones, which alone reach the model: that has the same effect. Raises :class:`ApiError` 400."""
    known = [function.name for function in offered.functions]
    if missing := [name for name in names if name not in known]:
        raise bad_request(f"tool_choice: {missing[0]!r} is not among tools", "tool_choice")
    kept = [index for index, name in enumerate(known) if name in names]
    return Offered(
        [offered.functions[index] for index in kept], [offered.places[index] for index in kept], offered.freeform
    )


def _name(entry: Mapping[str, Any]) -> Any:
    inner = entry.get("function", entry.get("custom", entry))
    return inner.get("name") if isinstance(inner, dict) else None
