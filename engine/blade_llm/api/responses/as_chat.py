"""A request as the chat request that means the same, and that one's complaints in this one's words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.common.errors import ApiError, bad_request
from blade_llm.api.common.fields import parse
from blade_llm.api.common.unknown_fields import check_keys
from blade_llm.api.responses.functions import ResponseTools, chat_tools
from blade_llm.api.responses.requests import AS_IN_CHAT, ResponsesRequest

_NAMES: Final[Mapping[str, str]] = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning",
    "messages": "input",
}
"""A chat's name → ours."""
_ANY_NAME: Final = re.compile(rf"\b({'|'.join(map(re.escape, _NAMES))})\b")


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
    with with_response_field_names():
        return parse(chat | chat_tools(request, tools), ChatRequest)


@contextlib.contextmanager
def with_response_field_names() -> Iterator[None]:
    """Errors raised inside name the fields of a response's request."""
    try:
        yield
    except ApiError as error:
        detail = error.detail
        message = _ANY_NAME.sub(lambda found: _NAMES[found[1]], detail.message)
        param = None if detail.param is None else _NAMES.get(detail.param, detail.param)
        raise ApiError(
            error.status, message, kind=detail.type, param=param, code=detail.code, headers=error.headers
        ) from None


def response_field_names(field_names: Mapping[str, str]) -> dict[str, str]:
    """:attr:`~blade_llm.api.generation.prompt.Prompt.field_names` with the fields of a response's request."""
    return {thing: _NAMES.get(name, name) for thing, name in field_names.items()}


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
