"""Tools and reasoning through the official client: chats and responses, in every way, and their published shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from engine_support.fake_engine import write_script
from engine_support.openai_calls import Way, chat, each_way, response
from engine_support.openai_shapes import problems
from engine_support.openai_streams import check_chat_stream, check_response_stream, chunks_of, response_events
from engine_support.server_process import ServerProcess, running_server
from engine_support.tool_models import QWEN3, write_tool_model
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FLAT = {"type": "function", "name": "weather", "description": "Of today", "parameters": PARAMETERS, "strict": True}
CLOCK = {"type": "function", "name": "clock", "parameters": None, "strict": None}
NESTED = {"type": "function", "function": {key: value for key, value in FLAT.items() if key != "type"}}
ARGUMENTS = '{"city": "Oslo \u2600"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
THINKING = f"<think>\nI must look.\n</think>\n\nLet me see.\n{CALL}\n{CALL}"
WHOLE = Way(False, False)
NO_LIMIT = {"model": "tools", "max_tokens": None}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tool_model(tmp_path_factory.mktemp("model") / "tools", QWEN3)
    write_script(
        folder,
        ("Oslo", THINKING),
        ("Rome", CALL),
        ("cold", "It is <cold>."),
        ("think", "<think>\nwell\n</think>\n\n" + "xyz" * 20),
    )
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, model, engine="scripted") as process:
        yield process


def _final(server: ServerProcess, way: Way, **fields: Any) -> Any:
    body = {"model": "tools", "tools": [FLAT, CLOCK], "max_output_tokens": None, **fields}
    return response(server, way, **body).raw[-1]


@each_way
def test_a_response_that_thinks_speaks_and_calls(server: ServerProcess, way: Way) -> None:
    final = _final(server, way, input="the weather in Oslo")
    thought, said, *calls = final.output
    assert (thought.type, thought.content[0].text, thought.summary) == ("reasoning", "I must look.", [])
    assert (said.type, final.output_text) == ("message", "Let me see.")
    assert [(call.type, call.name, call.arguments) for call in calls] == [("function_call", "weather", ARGUMENTS)] * 2
    assert len({call.call_id for call in calls}) == 2
    assert final.status == "completed"
    assert 0 < final.usage.output_tokens_details.reasoning_tokens < final.usage.output_tokens
    assert [(tool.name, tool.strict) for tool in final.tools] == [("weather", True), ("clock", None)]


@each_way
def test_a_chat_that_thinks_speaks_and_calls(server: ServerProcess, way: Way) -> None:
    messages = [{"role": "user", "content": "the weather in Oslo"}]
    reply = chat(server, way, messages=messages, tools=[NESTED], **NO_LIMIT)
    assert (reply.text, reply.output.reasoning) == ("Let me see.", "I must look.")
    assert reply.output.calls == [("weather", ARGUMENTS)] * 2
    assert reply.output.finish_reason == "tool_calls"
    assert reply.usage.completion_tokens_details.reasoning_tokens > 0


@each_way
@pytest.mark.parametrize(
    "choice",
    [
        "auto",
        "required",
        {"type": "function", "name": "weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
    ],
    ids=str,
)
def test_tool_choice(server: ServerProcess, way: Way, choice: Any) -> None:
    final = _final(server, way, input="the weather in Rome", tool_choice=choice, parallel_tool_calls=False)
    (call,) = final.output
    assert (call.type, call.name) == ("function_call", "weather")
    given = final.tool_choice if isinstance(choice, str) else final.tool_choice.model_dump()
    assert given == choice


@each_way
def test_no_call_where_none_may_be(server: ServerProcess, way: Way) -> None:
    (message,) = _final(server, way, input="the weather in Rome", tool_choice="none").output
    assert "weather" in message.content[0].text


@each_way
def test_outputs_go_back(server: ServerProcess, way: Way) -> None:
    """The prompt of the next turn is the same in both forms, as its number of tokens shows."""
    first = _final(server, way, input="the weather in Oslo")
    outputs = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "cold"}
        for item in first.output
        if item.type == "function_call"
    ]
    items = [{"role": "user", "content": "the weather in Oslo"}, *first.output, *outputs]
    second = _final(server, way, input=items)
    assert second.output_text == "It is <cold>."
    calls = [
        {"id": item["call_id"], "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
        for item in outputs
    ]
    messages: list[Any] = [
        {"role": "user", "content": "the weather in Oslo"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": item["call_id"], "content": "cold"} for item in outputs),
    ]
    clock = {"type": "function", "function": {"name": "clock"}}
    in_chat = chat(server, WHOLE, messages=messages, tools=[NESTED, clock], **NO_LIMIT)
    assert in_chat.text == "It is <cold>."
    assert second.usage.input_tokens == in_chat.usage.prompt_tokens


def test_the_client_s_own_stream_helper(server: ServerProcess) -> None:
    with server.client.responses.stream(model="tools", input="the weather in Rome", tools=[FLAT]) as stream:  # type: ignore[list-item]
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        (call,) = stream.get_final_response().output
    assert len(deltas) > 1
    assert call.type == "function_call"
    assert call.parsed_arguments == json.loads("".join(deltas)) == json.loads(ARGUMENTS)


@pytest.mark.parametrize("text", ["Oslo", "Rome", "think"])
@pytest.mark.parametrize("limit", [None, 5, 12])
def test_shapes(server: ServerProcess, text: str, limit: int | None) -> None:
    messages = [{"role": "user", "content": text}]
    body = {"messages": messages, "tools": [NESTED], "max_tokens": limit, "logprobs": True}
    assert problems(server.post("/v1/chat/completions", **body).json(), ChatCompletion) == []
    check_chat_stream(chunks_of(server.post("/v1/chat/completions", **body, stream=True)))
    body = {"input": text, "tools": [FLAT], "max_output_tokens": limit}
    whole = server.post("/v1/responses", **body).json()
    assert problems(whole, Response) == []
    final = check_response_stream(response_events(server.post("/v1/responses", **body, stream=True)))
    assert final["status"] == whole["status"] == ("completed" if limit is None else "incomplete")
    assert [item["type"] for item in final["output"]] == [item["type"] for item in whole["output"]]


@each_way
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "teleport"}]}, "tools"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "abnf"}}]}, "tools"),
        ({"tools": [{"type": "custom"}]}, "tools"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools"),
        ({"tools": [FLAT, FLAT]}, "tools"),
        ({"tools": [{**FLAT, "name": "a b"}]}, "tools"),
        ({"tools": [{**FLAT, "parameters": {"type": "string"}}]}, "tools"),
        ({"tools": [{**FLAT, "defer_loading": True}]}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "no"}]}},
            "tool_choice",
        ),
    ],
    ids=str,
)
def test_bad_tools(server: ServerProcess, way: Way, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        _final(server, way, **{"input": "x", **fields})
    assert caught.value.param == param
