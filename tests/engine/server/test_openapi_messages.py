"""The OpenAPI document and the code agree on what a message is, in either API, and an item of a response's input: each
takes just what the other takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from blade_llm.api.common.errors import ApiError
from blade_llm.api.conversation import checked_message
from blade_llm.api.image_parts import ImageParts
from blade_llm.api.messages.conversation import messages_of as messages_of_blocks
from blade_llm.api.messages.images import MEDIA_TYPES
from blade_llm.api.messages.schemas import MESSAGE as BLOCK_MESSAGE
from blade_llm.api.responses.conversation import TEXT_PARTS, messages_of
from blade_llm.api.responses.schemas import ITEM
from blade_llm.multimodal.settings import DETAILS
from blade_llm.server.openapi import MESSAGE, MESSAGE_WITH_IMAGES

IS_MESSAGE = Draft202012Validator(MESSAGE).is_valid
IS_MESSAGE_WITH_IMAGES = Draft202012Validator(MESSAGE_WITH_IMAGES).is_valid
IS_BLOCK_MESSAGE = Draft202012Validator(BLOCK_MESSAGE).is_valid
IS_ITEM = Draft202012Validator(ITEM).is_valid
LEAVES: list[Any] = [None, "", "x", "text", 0, 1.5, True, [], {}, ["x"]]
leaves = st.sampled_from(LEAVES)


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these fields, each as it should be or not."""
    return st.fixed_dictionaries({}, optional={name: st.one_of(value, leaves) for name, value in fields.items()})


images = objects(url=st.just("data:,x"), detail=st.sampled_from(DETAILS), max_pixels=st.just(1), min_pixels=st.just(9))
parts = objects(
    type=st.sampled_from(["text", "refusal", "image_url"]),
    text=st.just("t"),
    refusal=st.just("r"),
    image_url=st.one_of(st.just("data:,x"), images),
)
functions = objects(name=st.just("f"), arguments=st.sampled_from(["{}", "{", {"a": 1}]))
calls = objects(id=st.just("call_1"), type=st.just("function"), function=functions)
messages = objects(
    role=st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "nobody"]),
    content=st.one_of(st.just("c"), st.lists(st.one_of(parts, leaves), max_size=2)),
    tool_calls=st.lists(st.one_of(calls, leaves), max_size=2),
    tool_call_id=st.just("call_1"),
    function_call=functions,
)


input_images = objects(
    type=st.just("input_image"),
    image_url=st.just("data:,"),
    file_id=st.none(),
    detail=st.sampled_from(["auto", "low", "high", "original"]),
)
said = st.one_of(
    st.just("c"),
    st.lists(
        st.one_of(objects(type=st.sampled_from(TEXT_PARTS), text=st.just("t")), input_images, parts, leaves),
        max_size=2,
    ),
)
items = objects(
    type=st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "item_reference"]),
    role=st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    content=said,
    summary=said,
    output=said,
    call_id=st.just("call_1"),
    name=st.just("f"),
    arguments=st.just("{}"),
)


sources = objects(
    type=st.sampled_from(["base64", "url", "file"]),
    media_type=st.sampled_from([*MEDIA_TYPES, "image/bmp"]),
    data=st.just("aGk="),
    url=st.just("https://a.b/c.png"),
    file_id=st.just("file_1"),
)
images = st.fixed_dictionaries({"type": st.just("image"), "source": sources})
texts = st.one_of(
    st.just("c"),
    st.lists(
        st.one_of(images, objects(type=st.sampled_from(["text", "image"]), text=st.just("t"), source=sources)),
        max_size=2,
    ),
)
blocks = objects(
    type=st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image"]),
    text=st.just("t"),
    thinking=st.just("h"),
    id=st.just("toolu_1"),
    name=st.just("f"),
    input=st.just({"a": 1}),
    tool_use_id=st.just("toolu_1"),
    source=sources,
    content=texts,
    is_error=st.booleans(),
)
block_messages = objects(
    role=st.sampled_from(["user", "assistant", "system", "tool"]),
    content=st.one_of(st.just("c"), st.lists(st.one_of(blocks, images, leaves), max_size=2)),
)


@settings(max_examples=1_000)
@given(block_messages)
def test_the_document_and_the_code_take_the_same_blocks(message: dict[str, Any]) -> None:
    after = {"role": "user", "content": "so that it is not the last one"}
    assert is_taken(lambda: messages_of_blocks([message, after], None)) == IS_BLOCK_MESSAGE(message)


@settings(max_examples=600)
@given(messages)
def test_the_document_and_the_code_take_the_same_messages(message: dict[str, Any]) -> None:
    assert is_taken(lambda: checked_message(message, 0)) == IS_MESSAGE(message)


@settings(max_examples=1_000)
@given(messages)
def test_the_document_and_the_code_take_the_same_images(message: dict[str, Any]) -> None:
    assert is_taken(lambda: checked_message(message, 0, ImageParts("", 9))) == IS_MESSAGE_WITH_IMAGES(message)


@settings(max_examples=600)
@given(items)
def test_the_document_and_the_code_take_the_same_items(item: dict[str, Any]) -> None:
    """Beside a message, as there must be something to answer."""
    assert is_taken(lambda: messages_of([item, {"role": "user", "content": "x"}], None)) == IS_ITEM(item)


def is_taken(read: Callable[[], object]) -> bool:
    try:
        read()
    except ApiError:
        return False
    return True
