"""A streamed output with reasoning and calls says the same as the whole one, however its text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engine_support.pieces import BORDERS, cut
from engine_support.tiny_text import write_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_llm.api.chat import ChatSerializer
from blade_llm.api.generation.logprobs import TokenNames
from blade_llm.api.generation.result import ChoiceUpdate
from blade_llm.api.tools.serializer import CallIds, ParsedChatSerializer
from blade_llm.text.output_parser import OutputParsing
from blade_llm.text.reasoning import QWEN3
from blade_llm.text.tokenizer import Tokenizer
from blade_llm.text.tool_parsers import HERMES

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "\u00e9\\n"}}\n</tool_call>'


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> TokenNames:
    return TokenNames(Tokenizer(write_tokenizer(tmp_path_factory.mktemp("tokenizer"))), by_id=False)


def _serializer(names: TokenNames, *, include_reasoning: bool, named: bool = False) -> ParsedChatSerializer:
    parsing = OutputParsing(calls=HERMES, reasoning=QWEN3, named=named)
    return ParsedChatSerializer(ChatSerializer("chatcmpl-1", "m", names), parsing, include_reasoning=include_reasoning)


def _whole(serializer: ParsedChatSerializer, text: str, reason: str) -> dict[str, Any]:
    choice = serializer.choice(ChoiceUpdate(2, text, [], reason))
    return {"finish_reason": choice["finish_reason"], **choice["message"]}


def _streamed(serializer: ParsedChatSerializer, pieces: list[str], reason: str) -> dict[str, Any]:
    """The message a client puts together, with the checks a strict one would make."""
    data = serializer.first_chunk(2) + b"".join(serializer.chunk(ChoiceUpdate(2, piece, [])) for piece in pieces)
    data += serializer.chunk(ChoiceUpdate(2, "", [], reason))
    message: dict[str, Any] = {"finish_reason": None, "refusal": None}
    for number, event in enumerate(data.decode().split("\n\n")[:-1]):
        chunk = json.loads(event.removeprefix("data: "))
        (choice,) = chunk["choices"]
        assert chunk["object"] == "chat.completion.chunk"
        assert choice["index"] == 2
        assert message["finish_reason"] is None, "nothing comes after the end"
        message["finish_reason"] = choice["finish_reason"]
        delta = choice["delta"]
        assert ("role" in delta) is (number == 0)
        message |= {"role": delta["role"]} if number == 0 else {}
        for name in ("content", "reasoning", "reasoning_content"):
            if delta.get(name) is not None:
                message[name] = (message.get(name) or "") + delta[name]
        for call in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                assert call["function"]["arguments"] == ""
                calls.append({key: call[key] for key in ("id", "type", "function")})
            else:
                assert set(call) == {"index", "function"}
                assert call["index"] == len(calls) - 1
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    return {"content": None, **message}


_PARTS = ["<think>", "</think>", CALL, "<tool_call>", "</tool_call>", "{", "text", " ", "\n", "\u00e9"]


@given(
    parts=st.lists(st.sampled_from(_PARTS), max_size=8),
    borders=BORDERS,
    include_reasoning=st.booleans(),
    reason=st.sampled_from(["stop", "length"]),
)
@settings(max_examples=300, deadline=None)
def test_a_stream_says_what_the_whole_response_says(
    names: TokenNames, parts: list[str], borders: list[int], include_reasoning: bool, reason: str
) -> None:
    text = "".join(parts)
    whole = _whole(_serializer(names, include_reasoning=include_reasoning), text, reason)
    streamed = _streamed(_serializer(names, include_reasoning=include_reasoning), cut(text, borders), reason)
    for message in (whole, streamed):
        message["content"] = message["content"] or None  # in a stream both stand for "none came"
        calls = message.get("tool_calls", [])
        assert len({call.pop("id") for call in calls}) == len(calls)
    assert streamed == whole


def test_a_call_named_in_the_request_ends_with_stop(names: TokenNames) -> None:
    for named, reason in ((False, "tool_calls"), (True, "stop")):
        assert _whole(_serializer(names, include_reasoning=True, named=named), CALL, "stop")["finish_reason"] == reason
        assert (
            _streamed(_serializer(names, include_reasoning=True, named=named), [CALL], "stop")["finish_reason"]
            == reason
        )


def test_ids_of_calls_are_those_of_one_response() -> None:
    responses = [CallIds(), CallIds()]
    ids = {response.id_of(choice, index) for response in responses for choice in (0, 1) for index in (0, 1)}
    assert len(ids) == 8
    assert responses[0].id_of(0, 1) == responses[0].id_of(0, 1)
    assert all(found.startswith("call_") and found[5:].isalnum() for found in ids)


def test_two_outputs_to_one_request_id_name_their_calls_differently(names: TokenNames) -> None:
    calls = [_whole(_serializer(names, include_reasoning=True), CALL, "stop")["tool_calls"][0] for _ in range(2)]
    assert calls[0]["id"] != calls[1]["id"]


def test_reasoning_that_is_not_shown_begins_the_stream_all_the_same(names: TokenNames) -> None:
    serializer = _serializer(names, include_reasoning=False)
    data = serializer.first_chunk(0) + serializer.chunk(ChoiceUpdate(0, "<think>\nwell, I", []))
    (choice,) = json.loads(data.removeprefix(b"data: "))["choices"]
    assert choice["delta"] == {"role": "assistant", "content": None}
    assert serializer.chunk(ChoiceUpdate(0, " wonder", [])) == b""
    after = serializer.chunk(ChoiceUpdate(0, "</think>\n\nyes", []))
    assert json.loads(after.removeprefix(b"data: "))["choices"][0]["delta"] == {"content": "yes"}
