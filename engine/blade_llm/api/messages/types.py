"""Types of what ``/v1/messages`` returns, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class TextContent(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ThinkingText(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUse(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ThinkingTokens(msgspec.Struct):
    thinking_tokens: int


class MessageUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    """Of the prompt, without those from the prefix cache."""
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens | msgspec.UnsetType = msgspec.UNSET
    """Of a model that thinks."""
    service_tier: Literal["standard"]


class MessageObject(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"]
    model: str
    content: list[TextContent | ThinkingText | ToolUse]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(msgspec.Struct):
    input_tokens: int
