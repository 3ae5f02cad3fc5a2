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


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """An element of ``tools``."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class NamedToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """``{"type": "function", "function": {"name": …}}``: call this one."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice
