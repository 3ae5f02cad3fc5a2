"""Wrong bodies are refused with work that grows with their size alone, and are not repeated whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import pytest

from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.common import json_faults, unknown_fields
from blade_llm.api.common.errors import ApiError
from blade_llm.api.common.fields import parse
from blade_llm.api.common.json_faults import check_names, malformed
from blade_llm.api.common.response_notes import noting
from blade_llm.api.generation.requests import CompletionRequest


def _calls(function: Callable[[], object]) -> int:
    """How many Python functions ``function`` calls: the same on any machine."""
    count = 0

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def _never(*_: object) -> bool:
    raise AssertionError("this costs too much here")


def _refused(fields: dict[str, Any], kind: type[msgspec.Struct] = CompletionRequest) -> ApiError:
    with noting(strict=True), pytest.raises(ApiError) as caught:
        parse(fields, kind)
    return caught.value


def _body_at_depth(depth: int, inside: str) -> bytes:
    return f'{{"prompt": {"[" * depth}{inside}{"]" * depth}}}'.encode()


def test_a_fault_far_inside_is_found_in_one_pass() -> None:
    values = 7_000
    body = _body_at_depth(200, ", ".join(['"text"'] * values) + ", NaN")
    error = malformed(body, ValueError("NaN"))
    assert _calls(lambda: malformed(body, ValueError("NaN"))) < 10 * values
    assert (error.detail.param, error.detail.message) == ("prompt", "prompt: must be a finite number")


@pytest.mark.parametrize("body", [rb'{"a": {"b": ["\ud800"]}}', rb'{"a": [{"\udc00": 1}]}'])
def test_half_a_character_is_found_in_values_and_names(body: bytes) -> None:
    error = malformed(body, ValueError("surrogate"))
    assert error.detail.param == "a"
    assert "surrogate" in error.detail.message


def test_many_names_are_not_searched_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {f"name_{number}": "x" * 200 for number in range(4000)}
    body = json.dumps(fields).encode()
    monkeypatch.setattr(json_faults, "_may_be_twice", _never)
    check_names(body, fields)


def test_names_given_twice_among_many_others_inside() -> None:
    inner = ", ".join(f'"n{number}": 1' for number in range(20_000))
    body = f'{{"metadata": {{{inner}, "n": 1, "n": 2}}, "n": 1, "n": 2}}'.encode()
    with pytest.raises(ApiError) as caught:
        check_names(body, msgspec.json.decode(body))
    assert (caught.value.detail.param, caught.value.detail.message) == ("n", "'n' is given twice")


def test_a_long_unknown_name_is_neither_compared_nor_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_fields.difflib, "get_close_matches", _never)
    error = _refused({"prompt": "x", "temperature" * 100_000: 1})
    assert len(error.body()) < 500
    assert error.detail.code == "unknown_field"
    assert error.detail.param is not None
    assert error.detail.param.startswith("temperature")
    assert len(error.detail.param) == 101


def test_a_long_value_is_not_repeated_whole() -> None:
    error = _refused({"prompt": "x", "response_format": {"type": "y" * 100_000}})
    assert error.detail.param == "response_format"
    assert len(error.body()) < 1000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "x - at `$.seed`"}}, "response_format"),
        ({"response_format": {"type": "x\n - at `$`\n"}}, "response_format"),
        ({"stream_options": {"a - at `$`": 1}}, "stream_options"),
        ({"guided_choice": ["a", 1]}, "guided_choice"),
    ],
)
def test_the_field_is_the_one_named_last(fields: dict[str, Any], param: str) -> None:
    error = _refused({"messages": [{"role": "user", "content": "x"}], **fields}, ChatRequest)
    assert error.detail.param == param
    assert error.detail.message.startswith(param)
