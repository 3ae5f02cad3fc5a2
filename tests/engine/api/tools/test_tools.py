"""Tools through the official client, on a real server whose model follows a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from engine_support.fake_engine import write_script
from engine_support.server_process import ServerProcess, running_server
from engine_support.tool_models import QWEN25, write_tool_model
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChatCompletionMessageFunctionToolCall,
)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Today's weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
MESSAGES = [{"role": "user", "content": "What is the weather in Oslo?"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo \u2600"}}\n</tool_call>'
ARGUMENTS = '{"city": "Oslo \u2600"}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tool_model(tmp_path_factory.mktemp("model") / "tools", QWEN25)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, model, engine="scripted") as process:
        yield process


def _complete(server: ServerProcess, **fields: Any) -> ChatCompletion:
    body = {"model": "tools", "messages": MESSAGES, "tools": [WEATHER, CLOCK], **fields}
    return server.client.chat.completions.create(**body)  # type: ignore[no-any-return]


def _stream(server: ServerProcess, **fields: Any) -> list[ChatCompletionChunk]:
    body = {"model": "tools", "messages": MESSAGES, "tools": [WEATHER, CLOCK], "stream": True, **fields}
    return list(server.client.chat.completions.create(**body))


def _message_calls(message: ChatCompletionMessage) -> list[ChatCompletionMessageFunctionToolCall]:
    return [call for call in message.tool_calls or [] if isinstance(call, ChatCompletionMessageFunctionToolCall)]


def _calls(completion: ChatCompletion, index: int = 0) -> list[tuple[str, str]]:
    found = _message_calls(completion.choices[index].message)
    return [(call.function.name, call.function.arguments) for call in found]


def test_a_call(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Oslo", CALL))
    completion = _complete(server)
    (choice,) = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert _calls(completion) == [("get_weather", ARGUMENTS)]
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].id.startswith("call_")
    assert choice.message.tool_calls[0].type == "function"
    assert completion.usage is not None
    assert completion.usage.completion_tokens > len(ARGUMENTS) // 2


def test_text_and_several_calls(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Oslo", f"Let me look.\n{CALL}\n{CALL}"))
    completion = _complete(server)
    assert completion.choices[0].message.content == "Let me look."
    assert _calls(completion) == [("get_weather", ARGUMENTS)] * 2
    calls = completion.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].id != calls[1].id


def test_no_call_and_a_malformed_one_are_content(server: ServerProcess, model: Path) -> None:
    for text in ("Sunny.\n", "I <tool_call> you"):
        write_script(model, ("Oslo", text))
        completion = _complete(server)
        assert completion.choices[0].message.content == text
        assert completion.choices[0].message.tool_calls is None
        assert completion.choices[0].finish_reason == "stop"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in _stream(server)) == text


def test_a_streamed_call(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Oslo", f"Let me look. {CALL}\n{CALL}"))
    chunks = _stream(server, stream_options={"include_usage": True})
    *events, last, usage = chunks
    assert usage.usage is not None
    deltas = [chunk.choices[0].delta for chunk in events]
    assert deltas[0].role == "assistant"
    assert deltas[0].content == ""
    assert "".join(delta.content or "" for delta in deltas) == "Let me look."
    found = [call for delta in deltas for call in delta.tool_calls or []]
    for number in (0, 1):
        first, *pieces = [call for call in found if call.index == number]
        assert first.function is not None
        assert (first.type, first.function.name, first.function.arguments) == ("function", "get_weather", "")
        assert first.id is not None
        assert all(piece.id is None and piece.type is None for piece in pieces)
        assert len(pieces) > 1, "arguments come as they are written"
        assert "".join((piece.function and piece.function.arguments) or "" for piece in pieces) == ARGUMENTS
    assert found[0].id != next(call for call in found if call.index == 1).id
    assert [chunk.choices[0].finish_reason for chunk in events] == [None] * len(events)
    assert last.choices[0].finish_reason == "tool_calls"


def test_the_first_delta_of_a_call_alone_has_no_content(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Oslo", CALL))
    deltas = [chunk.choices[0].delta for chunk in _stream(server)]
    assert deltas[0].role == "assistant"
    assert [delta.content for delta in deltas] == [None] * len(deltas)


def test_several_choices_whole_and_streamed(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Oslo", [CALL, "Sunny.", f"Well. {CALL}"]))
    completion = _complete(server, n=3)
    assert [len(_calls(completion, index)) for index in range(3)] == [1, 0, 1]
    assert [choice.finish_reason for choice in completion.choices] == ["tool_calls", "stop", "tool_calls"]
    assert [choice.message.content for choice in completion.choices] == [None, "Sunny.", "Well."]
    texts = ["", "", ""]
    ends: dict[int, str | None] = {}
    for chunk in _stream(server, n=3):
        (choice,) = chunk.choices
        for call in choice.delta.tool_calls or []:
            texts[choice.index] += (call.function and call.function.arguments) or ""
        ends[choice.index] = choice.finish_reason
    assert texts == [ARGUMENTS, "", ARGUMENTS]
    assert ends == {0: "tool_calls", 1: "stop", 2: "tool_calls"}


def test_logprobs_of_all_tokens_come_with_the_calls(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Oslo", f"Let me look. {CALL}"))
    completion = _complete(server, logprobs=True)
    assert completion.choices[0].logprobs is not None
    whole = "".join(entry.token for entry in completion.choices[0].logprobs.content or [])
    assert "<tool_call>" in whole
    streamed = [entry.token for chunk in _stream(server, logprobs=True)
                for entry in (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or []]  # fmt: skip
    assert "".join(streamed) == whole


def test_finish_reasons_follow_openai(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Oslo", CALL))
    assert _complete(server, tool_choice="required").choices[0].finish_reason == "tool_calls"
    named = {"type": "function", "function": {"name": "get_weather"}}
    assert _complete(server, tool_choice=named).choices[0].finish_reason == "stop"
    assert _stream(server, tool_choice=named)[-1].choices[0].finish_reason == "stop"
    cut = _complete(server, max_tokens=30)
    assert cut.choices[0].finish_reason == "length"


def test_without_tools_or_with_none_text_stays_text(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Oslo", 'Say {"name": "clock"}.'))
    without: list[dict[str, Any]] = [{"tool_choice": "none"}, {"tools": []}]
    for fields in without:
        assert _complete(server, **fields).choices[0].message.content == 'Say {"name": "clock"}.'


def test_an_agent_calls_reads_the_result_and_responds(server: ServerProcess, model: Path) -> None:
    write_script(
        model,
        ("weather in Oslo?", f"One moment. {CALL}\n{CALL}"),
        ("<tool_response>\n18 degrees", "It is 18 degrees."),
    )
    messages: list[Any] = list(MESSAGES)
    for _ in range(5):
        message = _complete(server, messages=messages).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in _message_calls(message):
            city = json.loads(call.function.arguments)["city"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"18 degrees in {city}"})
    assert messages[-1].content == "It is 18 degrees."
    assert len(messages) == 5


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [CLOCK, CLOCK]}, "tools", "'clock'"),
        ({"tools": [CLOCK] * 129}, "tools", "128"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "letters"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools", "name"),
        ({"tools": [{"type": "function"}]}, "tools", "function"),
        ({"tools": [{"type": "teleport"}]}, "tools", "teleport"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools",
         "object"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": 5}}}}]}, "tools",
         "properties"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools", "object"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True,
                     "parameters": {"properties": {"a": {"type": "objekt"}}}}}]}, "tools", "properties/a/type"),
        ({"tool_choice": "sometimes"}, "tool_choice", "sometimes"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "'f'"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "no tools"),
        ({"functions": [{"name": "f"}]}, "functions", "tools"),
        ({"function_call": {"name": "f"}}, "function_call", "tool_choice"),
        ({"messages": [*MESSAGES, {"role": "tool", "content": "5"}]}, "messages", "tool_call_id"),
        ({"messages": [*MESSAGES, {"role": "assistant", "tool_calls": []}, {"role": "assistant", "tool_calls": "x"}]},
         "messages", "messages[2]"),
        ({"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [{"id": "a", "function": {}}]}]},
         "messages", "name"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, "messages", "assistant"),
        ({"messages": [*MESSAGES, {"role": "function", "name": "f", "content": "5"}]}, "messages", "older"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "tools"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_named(
    server: ServerProcess, fields: dict[str, Any], param: str, says: str, stream: bool
) -> None:
    body = {"model": "tools", "messages": MESSAGES, "tools": [WEATHER], "stream": stream, **fields}
    response = server.post("/v1/chat/completions", **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


def test_a_call_with_arguments_that_are_no_json_can_be_sent_back(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Oslo", "Sorry."))
    call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"a": '}}
    messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "bad"}]}]  # fmt: skip
    assert _complete(server, messages=messages).choices[0].message.content == "Sorry."


def test_a_model_without_tools_says_so(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model, engine="scripted") as process:
        with pytest.raises(openai.BadRequestError, match="no place for tools") as caught:
            _complete(process, model=None)
        assert caught.value.param == "tools"
