"""What nobody knows: recorded, or refused with the nearest known name."""

from __future__ import annotations

from typing import Any

import pytest

from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.common.errors import ApiError
from blade_llm.api.common.fields import parse
from blade_llm.api.common.response_notes import noting
from blade_llm.api.common.unknown_fields import LONGEST_NAME, MAX_FIELDS, MAX_LISTED, UnknownFields
from blade_llm.api.responses.requests import parse_request

MESSAGES = [{"role": "user", "content": "x"}]
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "path", "hint"),
    [
        ({"max_token": 5}, "max_token", "'max_tokens'"),
        ({"temprature": 5}, "temprature", "'temperature'"),
        ({"client_metadata": {}}, "client_metadata", "'metadata'"),
        ({"num_ctx": None}, "num_ctx", ""),
        ({"stream_options": {"include_usages": True}}, "stream_options.include_usages", "'include_usage'"),
        ({"response_format": {"type": "text", "scheme": {}}}, "response_format.scheme", ""),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strickt": True}}},
            "response_format.json_schema.strickt",
            "'strict'",
        ),
        ({"tools": [TOOL, {**TOOL, "cache_control": {}}]}, "tools[].cache_control", ""),
        ({"tools": [{"type": "function", "function": {"name": "f", "descripton": "d"}}]},
         "tools[].function.descripton", "'description'"),
        ({"tool_choice": {"type": "function", "function": {"name": "f", "id": "g"}}}, "tool_choice.function.id", ""),
    ],
)  # fmt: skip
def test_unknown_fields_are_recorded_wherever_they_stand(fields: dict[str, Any], path: str, hint: str) -> None:
    raw = {"messages": MESSAGES, **fields}
    with noting(strict=False) as notes:
        parse(raw, ChatRequest)
    assert notes.unknown.header() == path
    with noting(strict=True), pytest.raises(ApiError) as caught:
        parse(raw, ChatRequest)
    detail = caught.value.detail
    assert (caught.value.status, detail.code, detail.param) == (400, "unknown_field", next(iter(fields)))
    assert repr(path.rpartition(".")[2]) in detail.message
    assert detail.message.endswith(f"did you mean {hint}?" if hint else repr(path.rpartition(".")[2]))


def test_fields_of_responses() -> None:
    raw = {
        "input": "x",
        "client_metadata": {},  # known to change nothing
        "text": {"format": {"type": "text"}, "verbose": True},
        "reasoning": {"effort": "low", "context": "auto"},
        "stream_options": {"include_obfuscations": False},
    }
    with noting(strict=False) as notes:
        parse_request(raw)
    found = notes.unknown.header().split(", ")
    assert sorted(found) == ["reasoning.context", "stream_options.include_obfuscations", "text.verbose"]


def test_known_fields_leave_no_record() -> None:
    with noting(strict=True) as notes:
        parse(
            {"messages": MESSAGES, "user": "u", "tools": [TOOL], "stream_options": {"include_usage": True}}, ChatRequest
        )
    assert notes.unknown.count == 0
    assert notes.unknown.header() == ""


def test_names_cannot_end_the_header_or_pass_for_several() -> None:
    unknown = UnknownFields()
    for name in ("a\r\nset-cookie: b", "c, d", "\u00e9\u4e2d", "", "x" * 1000):
        unknown.note(name)
    names = unknown.header().split(", ")
    assert names == ["a??set-cookie:?b", "c??d", "??", "?", "x" * LONGEST_NAME]
    assert unknown.header().isascii()
    assert unknown.header().isprintable()


def test_the_header_is_bounded() -> None:
    unknown = UnknownFields()
    for number in range(10_000):
        unknown.note(f"{number}-{'x' * 200}", within="messages[]")
    names = unknown.header().split(", ")
    assert len(names) == MAX_LISTED + 1
    assert names[-1] == "..."
    assert len(unknown.header()) < MAX_LISTED * (LONGEST_NAME + 2) + 4
    assert unknown.count == 64


def test_a_body_of_too_many_fields_is_refused() -> None:
    raw = {"messages": MESSAGES, **{f"n{number}": 1 for number in range(MAX_FIELDS)}}
    with noting(strict=False), pytest.raises(ApiError, match=f"at most {MAX_FIELDS}"):
        parse(raw, ChatRequest)


def test_outside_of_a_request_they_are_left_out() -> None:
    assert parse({"messages": MESSAGES, "num_ctx": 5}, ChatRequest).messages == MESSAGES


def test_an_unknown_constraint_is_refused_always() -> None:
    raw = {"messages": MESSAGES, "structured_outputs": {"regex": "a", "regexp": "b"}}
    with noting(strict=False), pytest.raises(ApiError, match="regexp"):
        parse(raw, ChatRequest)


@pytest.mark.parametrize("model", ["lora", None])
def test_a_refused_field_may_say_what_its_substitute_says(model: str | None) -> None:
    raw = {"messages": MESSAGES, "model": model, "lora_path": model}  # as a benchmark of SGLang's names adapters
    assert parse(raw, ChatRequest).model == model
    for wrong in ({"lora_path": "another"}, {"lora_path": 1, "": 1}):
        with pytest.raises(ApiError) as caught:
            parse({**raw, **wrong}, ChatRequest)
        assert (caught.value.detail.param, caught.value.detail.code) == ("lora_path", "unsupported")
