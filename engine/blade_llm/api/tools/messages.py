"""Calls and their results in a conversation, checked and in the form chat templates expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from blade_llm.api.common.errors import bad_request
from blade_llm.text.tool_parsers.freeform import INPUT


def with_calls(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``message`` with the arguments of its calls parsed, and with its reasoning under the name templates know.

    Templates write arguments as JSON themselves, so a string would be quoted twice; one that is not JSON (as a model
    may well have written it) stays as it is. Raises :class:`ApiError` 400 that names ``messages``.
    """
    found = dict(message)
    if found.get("reasoning_content") is None:
        found.pop("reasoning_content", None)
        if isinstance(found.get("reasoning"), str):
            found["reasoning_content"] = found["reasoning"]
    if found.get("role") == "tool" and not isinstance(found.get("tool_call_id"), str):
        raise bad_request(f"{where}.tool_call_id must name the call that this is the result of", "messages")
    if found.get("function_call") is not None:
        older = f"{where}: function_call is the older form of tool_calls; send those"
        raise bad_request(older, "messages", "unsupported")
    calls = found.pop("tool_calls", None)
    if calls is None or calls == []:
        return found  # without the key: templates check for it
    if found.get("role") != "assistant":
        raise bad_request(f"{where}.tool_calls belongs to messages of the assistant", "messages")
    if not isinstance(calls, list):
        raise bad_request(f"{where}.tool_calls must be a list", "messages")
    found["tool_calls"] = [_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return found


def _call(call: Any, where: str) -> dict[str, Any]:
    if isinstance(call, dict) and call.get("type") == "custom":
        call = _as_function(call, where)
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise bad_request(f'{where} must be {{"id": …, "type": "function", "function": {{…}}}}', "messages")
    if not isinstance(function.get("name"), str):
        raise bad_request(f"{where}.function.name must be a string", "messages")
    if not isinstance(call.get("id"), str):
        raise bad_request(f"{where}.id must be a string", "messages")
    arguments = function.get("arguments", "")
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    elif not isinstance(arguments, dict):
        raise bad_request(f"{where}.function.arguments must be a string of JSON", "messages")
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _as_function(call: dict[str, Any], where: str) -> dict[str, Any]:
    """A call of a freeform tool as the model wrote it."""
    custom = call.get("custom")
    if not isinstance(custom, dict) or not isinstance(custom.get("input"), str):
        raise bad_request(
            f'{where} must be {{"id": …, "type": "custom", "custom": {{"name": …, "input": …}}}}', "messages"
        )
    rest = {name: value for name, value in call.items() if name != "custom"}
    return {**rest, "type": "function", "function": {"name": custom.get("name"), "arguments": {INPUT: custom["input"]}}}


def _parsed(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments) if arguments.strip() else {}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return arguments
