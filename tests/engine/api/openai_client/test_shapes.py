"""Responses and streams have the shapes OpenAI publishes; and the checker that says so sees what is wrong."""

from __future__ import annotations

import copy
from typing import Any

import httpx
import pytest
from engine_support.openai_shapes import problems
from engine_support.openai_streams import (
    check_chat_stream,
    check_completion_stream,
    check_response_stream,
    chunks_of,
    response_events,
)
from engine_support.server_process import ServerProcess
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "seed": 1}
TEXT: dict[str, Any] = {"prompt": "hello", "max_tokens": 6, "seed": 1}
ITEMS: dict[str, Any] = {"input": "hello", "max_output_tokens": 6, "seed": 1}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
USAGE = {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    "fields", [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"stop_token_ids": list(range(97))}], ids=str
)
def test_chat(server: ServerProcess, fields: dict[str, Any]) -> None:
    assert problems(server.post("/v1/chat/completions", **CHAT, **fields).json(), ChatCompletion) == []
    n = fields.get("n", 1)
    for options in ({}, USAGE):
        stream = server.post("/v1/chat/completions", **CHAT, **fields, **options, stream=True)
        check_chat_stream(chunks_of(stream), n=n, usage=bool(options))


@pytest.mark.parametrize("fields", [{}, {"n": 2, "echo": True}, {"logprobs": 2}, {"prompt": ["a", "b"]}], ids=str)
def test_completions(server: ServerProcess, fields: dict[str, Any]) -> None:
    body = {**TEXT, **fields}
    assert problems(server.post("/v1/completions", **body).json(), Completion) == []
    n = 2 if "n" in fields or "prompt" in fields else 1
    for options in ({}, USAGE):
        check_completion_stream(
            chunks_of(server.post("/v1/completions", **body, **options, stream=True)), n=n, usage=bool(options)
        )


@pytest.mark.parametrize(
    "fields", [{}, LOGPROBS, {"max_output_tokens": None}, {"stop_token_ids": list(range(97))}], ids=str
)
def test_responses(server: ServerProcess, fields: dict[str, Any]) -> None:
    body = {**ITEMS, **fields}
    whole = server.post("/v1/responses", **body).json()
    assert problems(whole, Response) == []
    final = check_response_stream(response_events(server.post("/v1/responses", **body, stream=True)))
    texts = [[part["text"] for item in one["output"] for part in item["content"]] for one in (whole, final)]
    assert texts[0] == texts[1]


def test_models(server: ServerProcess) -> None:
    listed = httpx.get(f"{server.url}/v1/models").json()
    assert listed["object"] == "list"
    for model in listed["data"]:
        assert problems(model, Model) == []
        assert httpx.get(f"{server.url}/v1/models/{model['id']}").json() == model


BREAKS: dict[str, tuple[list[Any], Any, str]] = {
    "missing": (["choices", 0, "message"], ..., "$.choices[0].message is missing"),
    "missing, though null may stand there": (["choices", 0, "logprobs"], ..., "$.choices[0].logprobs is missing"),
    "text for a number": (["created"], "1", "$.created: str '1' in place of int"),
    "a number with a point": (["created"], 1.5, "$.created: float 1.5 in place of int"),
    "a boolean for a number": (["usage", "total_tokens"], True, "$.usage.total_tokens: bool True in place of int"),
    "null": (["id"], None, "$.id: null in place of str"),
    "null for what is left out": (
        ["choices", 0, "message", "tool_calls"],
        None,
        "$.choices[0].message.tool_calls is null",
    ),
    "unknown": (["extra"], 1, "$.extra is no field of ChatCompletion"),
    "no such word": (["object"], "chat", "$.object: 'chat' is none of ('chat.completion',)"),
    "no list": (["choices"], {}, "$.choices: dict {} in place of a list"),
}


@pytest.mark.parametrize(("path", "value", "said"), BREAKS.values(), ids=BREAKS.keys())
def test_the_checker_sees(server: ServerProcess, path: list[Any], value: Any, said: str) -> None:
    whole = copy.deepcopy(server.post("/v1/chat/completions", **CHAT).json())
    place = whole
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    assert problems(whole, ChatCompletion) == [said]


def test_the_checker_sees_a_wrong_order(server: ServerProcess) -> None:
    events = response_events(server.post("/v1/responses", **ITEMS, stream=True))
    for index in range(2, len(events) - 2):
        swapped = copy.deepcopy(events)
        swapped[index]["type"] = events[index + 1]["type"]
        if swapped != events:
            with pytest.raises((AssertionError, KeyError)):
                check_response_stream(swapped)
    with pytest.raises(AssertionError):
        check_response_stream(events[1:])
