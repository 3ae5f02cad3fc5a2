"""A streamed output with reasoning and calls says the same as the whole one, however its text is cut."""

from __future__ import annotations

import json
from dataclasses import replace
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
from blade_llm.text.tool_parsers import HERMES, TOOL_PARSERS, CallForm
from blade_llm.text.tool_parsers.named import DEEPSEEK_MARKERS

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


@pytest.mark.parametrize("form", TOOL_PARSERS.values(), ids=TOOL_PARSERS)
def test_a_forced_call_that_is_cut_short_shows_no_markup(names: TokenNames, form: CallForm) -> None:
    calls, _, call, _, separator = DEEPSEEK_MARKERS
    texts = {
        "hermes": CALL,
        "llama3_json": '{"name": "f", "parameters": {"a": 5}}',
        "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {"a": 5}}]',
        "deepseek_v3": "".join([calls, call, "function", separator, 'f\n```json\n{"a": 5}']),
        "deepseek_v31": "".join([calls, call, "f", separator, '{"a": 5}']),
        "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>",
        "glm45": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
        "pythonic": "[f(a=5)]",
    }
    text = texts[form.name]
    parsing = OutputParsing(calls=form, names=frozenset({"f"}), forced=True)
    for end in range(1, len(text)):
        serializer = ParsedChatSerializer(ChatSerializer("chatcmpl-1", "m", names), parsing)
        whole = _whole(serializer, text[:end], "length")
        assert whole["content"] in (None, ""), text[:end]
        assert whole["finish_reason"] == "length"
        streamed = _streamed(serializer, list(text[:end]), "length")
        assert streamed["content"] in (None, ""), text[:end]
        assert streamed["finish_reason"] == "length"
    free = ParsedChatSerializer(ChatSerializer("chatcmpl-1", "m", names), replace(parsing, forced=False))
    assert _whole(free, text[:2], "length")["content"] == text[:2]


def test_token_ids_and_the_echo_of_parsed_outputs(names: TokenNames) -> None:
    parsing = OutputParsing(calls=HERMES, names=frozenset({"f"}), reasoning=QWEN3)
    options: dict[str, Any] = {"with_token_ids": True, "echo": "So: ", "first_fields": {"prompt_token_ids": [7, 8]}}
    serializer = ParsedChatSerializer(ChatSerializer("chatcmpl-1", "m", names, **options), parsing)
    pieces = [*"<think>why</think>", *"now ", *CALL]
    whole = serializer.choice(ChoiceUpdate(2, "".join(pieces), [], "stop", None, list(range(len(pieces)))))
    assert whole["message"]["content"] == "So: now"
    assert whole["token_ids"] == list(range(len(pieces)))
    updates = [ChoiceUpdate(2, piece, [], None, None, [number]) for number, piece in enumerate(pieces)]
    data = b"".join(map(serializer.chunk, [*updates, ChoiceUpdate(2, "", [], "stop", None, [99])]))
    chunks = [json.loads(event.removeprefix("data: ")) for event in data.decode().split("\n\n")[:-1]]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [[7, 8], *[None] * (len(chunks) - 1)]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [each for choice in choices for each in choice.get("token_ids", ())] == [*range(len(pieces)), 99]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "So: now"
