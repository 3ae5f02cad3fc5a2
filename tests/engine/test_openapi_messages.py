"""The OpenAPI document and the code agree on what a message is: each takes just what the other takes."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from blade_llm.api.conversation import checked_message
from blade_llm.api.errors import ApiError
from blade_llm.api.openapi import MESSAGE

VALID = Draft202012Validator(MESSAGE).is_valid
LEAVES: list[Any] = [None, "", "x", "text", 0, 1.5, True, [], {}, ["x"]]
leaves = st.sampled_from(LEAVES)


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these fields, each as it should be or not."""
    return st.fixed_dictionaries({}, optional={name: st.one_of(value, leaves) for name, value in fields.items()})


parts = objects(type=st.sampled_from(["text", "refusal", "image_url"]), text=st.just("t"), refusal=st.just("r"))
functions = objects(name=st.just("f"), arguments=st.sampled_from(["{}", "{", {"a": 1}]))
calls = objects(id=st.just("call_1"), type=st.just("function"), function=functions)
messages = objects(
    role=st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "nobody"]),
    content=st.one_of(st.just("c"), st.lists(st.one_of(parts, leaves), max_size=2)),
    tool_calls=st.lists(st.one_of(calls, leaves), max_size=2),
    tool_call_id=st.just("call_1"),
    function_call=functions,
)


@settings(max_examples=600)
@given(messages)
def test_the_document_and_the_code_take_the_same_messages(message: dict[str, Any]) -> None:
    assert is_taken(message) == VALID(message)


def is_taken(message: dict[str, Any]) -> bool:
    try:
        checked_message(message, 0)
    except ApiError:
        return False
    return True
