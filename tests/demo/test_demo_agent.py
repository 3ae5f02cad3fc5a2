"""A first agent: the demo model, served without a flag, calls a function by itself and thinks where it is told to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from engine_support.server_process import ServerProcess, running_server
from examples.demo_model import measure

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ABOUT = "Look up a built-in function in Python's documentation."
TOOLS = [{"type": "function", "function": {"name": "lookup", "description": ABOUT, "parameters": SCHEMA}}]
QUESTION = {"role": "user", "content": "What does len do? Look it up."}
PLAIN = {"role": "user", "content": "What does len do?"}
ANSWER = "The built-in len() returns the number of items in a container."
RESULT = "Return the number of items in a container."
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = ("--load_format", "auto", "--dtype", "float32", "--kv_cache_bytes", "64MiB")
    with running_server(tmp_path_factory.mktemp("demo"), measure.HERE / "model", *flags, engine="real") as process:
        yield process


def events(server: ServerProcess, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = httpx.post(f"{server.url}{path}", json={**body, "stream": True}, timeout=60)
    assert response.status_code == 200, response.text
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]


def chat(server: ServerProcess, stream: bool, **fields: Any) -> dict[str, Any]:
    """The assistant's message, whole or put together from its deltas, with the finish reason."""
    body = {"temperature": 0, "max_tokens": 200, **fields}
    if not stream:
        response = server.post("/v1/chat/completions", **body)
        assert response.status_code == 200, response.text
        choice = response.json()["choices"][0]
        return {**choice["message"], "finish_reason": choice["finish_reason"]}
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for event in events(server, "/v1/chat/completions", body):
        (choice,) = event["choices"]
        message["finish_reason"] = choice["finish_reason"]
        delta = choice["delta"]
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                message[name] = (message.get(name) or "") + delta[name]
        for part in delta.get("tool_calls") or []:
            calls = message.setdefault("tool_calls", [])
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "type": "function", "function": dict(part["function"])})
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return message


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions_call_by_themselves_and_answer(server: ServerProcess, stream: bool) -> None:
    first = chat(server, stream, messages=[QUESTION], tools=TOOLS)
    assert first.pop("finish_reason") == "tool_calls"
    (call,) = first["tool_calls"]
    assert call["function"]["name"] == "lookup"
    assert json.loads(call["function"]["arguments"]) == {"name": "len"}
    assert not first["content"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": RESULT}
    second = chat(server, stream, messages=[QUESTION, first, result], tools=TOOLS)
    assert second["finish_reason"] == "stop"
    assert "number of items in a container" in second["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_messages_call_by_themselves_and_answer(server: ServerProcess, stream: bool) -> None:
    tools = [{"name": "lookup", "description": ABOUT, "input_schema": SCHEMA}]
    body: dict[str, Any] = {"model": "model", "max_tokens": 200, "temperature": 0, "tools": tools}
    first = messages(server, stream, {**body, "messages": [QUESTION]})
    assert first["stop_reason"] == "tool_use"
    (call,) = first["content"]
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "lookup", {"name": "len"})
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": RESULT}
    turns = [QUESTION, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    second = messages(server, stream, {**body, "messages": turns})
    assert second["stop_reason"] == "end_turn"
    assert "number of items in a container" in second["content"][0]["text"]


def messages(server: ServerProcess, stream: bool, body: dict[str, Any]) -> dict[str, Any]:
    """A message of `/v1/messages`, whole or put together from its events."""
    if not stream:
        response = server.post("/v1/messages", **body)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found
    blocks: list[dict[str, Any]] = []
    written: list[str] = []
    reason = None
    for event in events(server, "/v1/messages", body):
        match event["type"]:
            case "content_block_start":
                blocks.append(dict(event["content_block"]))
                written.append("")
            case "content_block_delta":
                written[event["index"]] += event["delta"].get("text") or event["delta"].get("partial_json") or ""
            case "message_delta":
                reason = event["delta"]["stop_reason"]
    for block, text in zip(blocks, written, strict=True):
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
        else:
            block["text"] = text
    return {"content": blocks, "stop_reason": reason}


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_gives_reasoning_and_the_same_answer(server: ServerProcess, stream: bool) -> None:
    thinking = chat(server, stream, messages=[PLAIN], **THINKING)
    assert "len" in thinking["reasoning_content"]
    assert thinking["content"] == ANSWER


def test_without_thinking_nothing_tells_of_reasoning(server: ServerProcess) -> None:
    message = chat(server, False, messages=[PLAIN])
    assert message["content"] == ANSWER
    assert not message.get("reasoning_content")
    usage = server.post("/v1/chat/completions", messages=[PLAIN], temperature=0).json()["usage"]
    assert not (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")


def test_a_guide_holds_from_the_first_token_on(server: ServerProcess) -> None:
    """No thought may come before it, as the prompt did not open one."""
    message = chat(server, False, messages=[PLAIN], guided_choice=["yes", "no"], max_tokens=8)
    assert message["content"] in ("yes", "no")
    assert not message.get("reasoning_content")


def test_tools_that_do_not_fit_are_left_alone(server: ServerProcess) -> None:
    weather = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"name": "get_weather", "description": "Get the weather in a city.", "parameters": weather}
    question = {"role": "user", "content": "What is a KeyError?"}
    message = chat(server, False, messages=[question], tools=[{"type": "function", "function": tool}])
    assert message.get("tool_calls") in (None, [])
    assert "mapping key not found" in message["content"]
