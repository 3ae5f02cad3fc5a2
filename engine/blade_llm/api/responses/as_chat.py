"""A request as the chat request that means the same, and that one's complaints in this one's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.common.errors import bad_request
from blade_llm.api.common.fields import parse
from blade_llm.api.common.response_notes import check_keys
from blade_llm.api.generation.field_names import FieldNames
from blade_llm.api.responses.functions import ResponseTools, chat_tools
from blade_llm.api.responses.requests import AS_IN_CHAT, ResponsesRequest

_NAMES: Final[Mapping[str, str]] = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning",
    "messages": "input",
    "function.parameters": "parameters",
}
"""A chat's name → ours."""
FIELD_NAMES: Final = FieldNames(_NAMES, _NAMES)


def as_chat(
    request: ResponsesRequest, raw: Mapping[str, Any], tools: ResponseTools, messages: list[dict[str, Any]]
) -> ChatRequest:
    """The chat request. ``raw``: the body ``request`` was made of. Raises :class:`ApiError` 400."""
    chat: dict[str, Any] = {name: value for name, value in raw.items() if name in AS_IN_CHAT}
    chat["messages"] = messages
    chat["max_completion_tokens"] = request.max_output_tokens
    if (form := _response_format(request.text.format)) is not None:
        chat["response_format"] = form
    if request.reasoning is not None:
        chat["reasoning_effort"] = request.reasoning.effort
    if request.with_logprobs:
        chat |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    with FIELD_NAMES.named(tools.places):
        return parse(chat | chat_tools(request, tools), ChatRequest)


def _response_format(form: dict[str, Any]) -> dict[str, Any] | None:
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            known = ("name", "description", "schema", "strict")
            check_keys(form, ("type", *known), "text.format")
            if not isinstance(form.get("name"), str) or not isinstance(form.get("schema"), dict):
                raise bad_request("text.format needs name, a string, and schema, an object", "text.format")
            given = {name: form[name] for name in known if form.get(name) is not None}
            return {"type": "json_schema", "json_schema": given}
        case _:
            raise bad_request("text.format.type must be text, json_object or json_schema", "text.format")
