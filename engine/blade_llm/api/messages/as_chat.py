"""A request as the chat request that means the same, and that one's complaints in this one's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.common.fields import parse
from blade_llm.api.generation.field_names import FieldNames
from blade_llm.api.messages.conversation import messages_of
from blade_llm.api.messages.requests import AS_IN_CHAT, MessagesRequest, PromptFields, json_format, thinks
from blade_llm.api.messages.tools import chat_tools, places
from blade_llm.api.translated_messages import TranslatedMessages

_NAMES: Final[Mapping[str, str]] = {
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "function.parameters": "input_schema",
    "stop": "stop_sequences",
}
"""A chat's name → ours."""
FIELD_NAMES: Final = FieldNames(_NAMES, ("response_format.json_schema", "response_format", "function.parameters"))
_THINKING: Final = {"enable_thinking": True, "thinking": True}
"""What the templates of Qwen3 and GLM, and of DeepSeek-V3.1 and Granite, call it."""


def as_chat(request: PromptFields, raw: Mapping[str, Any]) -> tuple[ChatRequest, TranslatedMessages]:
    """The chat request, without a limit of its output, and its messages. ``raw``: the body ``request`` was made of.

    Raises :class:`ApiError` 400.
    """
    same = AS_IN_CHAT.intersection(request.__struct_fields__)
    chat: dict[str, Any] = {name: value for name, value in raw.items() if name in same}
    translated = messages_of(request.messages, request.system)
    chat["messages"] = translated.messages
    if chat["messages"][-1]["role"] == "assistant":
        chat["continue_final_message"] = True
    if isinstance(request, MessagesRequest) and request.stop_sequences:
        chat["stop"] = request.stop_sequences
    if (form := json_format(request)) is not None:
        json_schema = {"name": "output", "schema": form.schema, "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    chat |= _thinking(request) | chat_tools(request)
    with FIELD_NAMES.named(places(request)):
        return parse(chat, ChatRequest), translated


def _thinking(request: PromptFields) -> dict[str, Any]:
    if not thinks(request):
        return {"reasoning_effort": "none"}
    assert request.thinking is not None
    found: dict[str, Any] = {}
    if request.thinking.type == "enabled":
        found["chat_template_kwargs"] = {**_THINKING, **request.chat_template_kwargs}
    if request.output_config is not None and request.output_config.effort is not None:
        found["reasoning_effort"] = request.output_config.effort
    return found
