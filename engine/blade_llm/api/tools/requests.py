"""The fields that offer tools to a model, as OpenAI writes them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function the model may call."""

    name: str
    """Letters, digits, ``_`` and ``-``, at most 64."""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON Schema of an object; None: no parameters."""
    strict: bool | None = None
    """Whether calls have to follow the schema even when the model chooses freely whether to call."""


class CustomDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that takes a text in place of arguments."""

    name: str
    description: str | None = None
    format: dict[str, Any] | None = None
    """``{"type": "text"}``, or ``grammar`` with ``syntax`` (``regex`` or ``lark``) and ``definition``."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """An element of ``tools``."""

    type: str
    """``function`` or ``custom``; tools that OpenAI runs itself are ignored."""
    function: FunctionDefinition | None = None
    custom: CustomDefinition | None = None
    strict: bool | None = None
    """Some clients put it here rather than into the function."""


class FunctionName(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]
    """``{"type": "function", "function": {"name": …}}`` each, or the same of ``custom``."""


class NamedToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """``{"type": "function", "function": {"name": …}}``: call this one; or which may be called."""

    type: Literal["function", "custom", "allowed_tools"]
    function: FunctionName | None = None
    custom: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice
