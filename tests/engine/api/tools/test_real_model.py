"""Calls of a real, tiny model with random weights: it says nothing of sense, yet its calls follow their schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from engine_support.server_process import ServerProcess, running_server
from engine_support.tool_models import QWEN25, write_tool_model

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "minItems": 1, "maxItems": 3},
        "unit": {"enum": ["\u00b0C", "\u00b0F"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
    "$defs": {"day": {"type": "integer", "minimum": 1, "maximum": 31}},
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {"name": "clock", "parameters": {"type": "object", "additionalProperties": False}},
    },
]
MESSAGES = [{"role": "user", "content": "What is the weather?"}]


@pytest.fixture(scope="module", params=["hermes", "mistral", "deepseek_v31", "qwen3_coder", "glm45", "pythonic"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_tool_model(tmp_path_factory.mktemp("model") / "tools", QWEN25)
    flags = (
        "--tool_call_parser",
        request.param,
        "--dtype",
        "float32",
        "--kv_cache_bytes",
        "16MiB",
        "--max_num_seqs",
        "8",
    )
    with running_server(tmp_path_factory.mktemp("server"), model, *flags, engine="real") as process:
        yield process


@pytest.mark.parametrize("stream", [False, True])
def test_required_calls_validate(server: ServerProcess, stream: bool) -> None:
    fields = {"model": "tools", "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "seed": 1, "n": 8,
              "parallel_tool_calls": False, "max_tokens": 300, "temperature": 1.0}  # fmt: skip
    calls: dict[int, list[str]] = {index: ["", ""] for index in range(8)}
    ends: dict[int, str | None] = {}
    if stream:
        for chunk in server.client.chat.completions.create(**fields, stream=True):  # type: ignore[call-overload]
            (choice,) = chunk.choices
            for call in choice.delta.tool_calls or []:
                calls[choice.index][0] += call.function.name or ""
                calls[choice.index][1] += call.function.arguments or ""
            ends[choice.index] = choice.finish_reason
    else:
        for choice in server.client.chat.completions.create(**fields).choices:  # type: ignore[call-overload]
            ((name, arguments),) = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
            calls[choice.index], ends[choice.index] = [name, arguments], choice.finish_reason
    assert set(ends.values()) == {"tool_calls"}
    assert {name for name, _ in calls.values()} <= {"get_weather", "clock"}
    for name, arguments in calls.values():
        value = json.loads(arguments)
        if name == "get_weather":
            jsonschema.validate(value, SCHEMA)
        else:
            assert value == {}


def test_a_named_function_with_everything_else(server: ServerProcess) -> None:
    fields = {
        "model": "tools", "messages": MESSAGES, "tools": TOOLS, "n": 3, "seed": 7, "stop": ["~~~~"], "max_tokens": 300,
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "presence_penalty": 0.5,
        "logit_bias": {"5": 3},
    }  # fmt: skip
    completion = server.client.chat.completions.create(**fields, logprobs=True, top_logprobs=2)  # type: ignore[call-overload]
    for choice in completion.choices:
        assert choice.finish_reason == "stop"
        assert choice.message.content is None
        (call,) = choice.message.tool_calls
        assert call.function.name == "get_weather"
        jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
        assert choice.logprobs.content
    again = server.client.chat.completions.create(**fields)  # type: ignore[call-overload]
    assert [_arguments(choice) for choice in again.choices] == [_arguments(choice) for choice in completion.choices]
    assert len({_arguments(choice) for choice in completion.choices}) == 3


def _arguments(choice: Any) -> str:
    return "".join(call.function.arguments for call in choice.message.tool_calls)
