"""Image blocks of Anthropic's messages as the parts of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from blade_llm.api.common.errors import ApiError, bad_request
from blade_llm.api.common.response_notes import noting
from blade_llm.api.messages.as_chat import as_chat
from blade_llm.api.messages.conversation import messages_of
from blade_llm.api.messages.requests import CountTokensRequest, MessagesRequest, parse_request

CACHED = {"cache_control": {"type": "ephemeral"}}
URL = {"type": "url", "url": "https://a.example/cat.png?sig=1"}


def base64(data: str, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "base64", "media_type": media_type, "data": data}


def image(source: Any, **more: Any) -> dict[str, Any]:
    return {"type": "image", "source": source, **more}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def result(number: int, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": content, **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize("media_type", ["image/jpeg", "image/png", "image/gif", "image/webp"])
def test_data_becomes_a_url(media_type: str) -> None:
    found = messages_of([user(image(base64("aGk=", media_type), **CACHED))], None).messages
    assert found == [{"role": "user", "content": [part(f"data:{media_type};base64,aGk=")]}]


def test_images_stand_among_the_texts() -> None:
    blocks = [text("a"), text(""), text("b"), image(URL), image(base64("eHk=")), text(""), text("c"), text("d")]
    later = {"role": "user", "content": "e"}
    assert messages_of([user(*blocks), later], "s").messages == [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [text("a\nb"), part(URL["url"]), part("data:image/png;base64,eHk="), text("c\nd\ne")],
        },
    ]


def test_those_of_results_follow_in_a_message_of_the_user() -> None:
    """All results stand right behind the calls, and then the images, in the order of the results."""
    calls = [{"type": "tool_use", "id": f"toolu_{number}", "name": "see", "input": {}} for number in (1, 2, 3)]
    results = [
        text("look"),
        result(1, [text("one"), image(base64("QQ=="), **CACHED), text("more")]),
        image(base64("Qw==")),
        result(2, [image(base64("Qg=="))], is_error=True),
        result(3, "three"),
    ]
    found = messages_of([user(text("x")), {"role": "assistant", "content": calls}, user(*results)], None).messages
    assert found[2:] == [
        {"role": "tool", "tool_call_id": "toolu_1", "content": "one\nmore"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error"},
        {"role": "tool", "tool_call_id": "toolu_3", "content": "three"},
        {
            "role": "user",
            "content": [
                *(part(f"data:image/png;base64,{data}") for data in ("QQ==", "Qg==")),
                text("look"),
                part("data:image/png;base64,Qw=="),
            ],
        },
    ]


def test_a_result_that_is_an_image() -> None:
    assert messages_of([user(result(1, [image(URL)]))], None).messages == [
        {"role": "tool", "tool_call_id": "toolu_1", "content": ""},
        {"role": "user", "content": [part(URL["url"])]},
    ]


@pytest.mark.parametrize("kind", [MessagesRequest, CountTokensRequest])
def test_a_chat_has_them_in_its_request(kind: Any) -> None:
    raw: dict[str, Any] = {"messages": [user(image(URL), text("a"))]}
    if kind is MessagesRequest:
        raw["max_tokens"] = 5
    chat, _ = as_chat(parse_request(raw, kind), raw)
    assert chat.messages == [{"role": "user", "content": [part(URL["url"]), text("a")]}]


SOURCE = r"messages\[0\]\.content\[1\]\.source"


@pytest.mark.parametrize(
    ("source", "complaint", "code"),
    [
        ({"type": "file", "file_id": "file_1"}, rf"{SOURCE}: file is not supported", "unsupported"),
        (None, rf"{SOURCE} must be an object", None),
        ("https://a.example", rf"{SOURCE} must be an object", None),
        ({}, rf"{SOURCE}\.type must be base64 or url", None),
        ({"type": ["url"]}, rf"{SOURCE}\.type must be base64 or url", None),
        ({"type": "url"}, rf"{SOURCE}\.url must be a string", None),
        ({"type": "url", "url": 3}, rf"{SOURCE}\.url must be a string", None),
        ({"type": "base64", "data": "QQ=="}, rf"{SOURCE}\.media_type must be image/jpeg, .* or image/webp", None),
        ({"type": "base64", "media_type": "image/png"}, rf"{SOURCE}\.data must be a string", None),
        (base64("QQ==", "image/bmp"), rf"{SOURCE}\.media_type must be", None),
        (base64("QQ==", "image/png,<svg>"), rf"{SOURCE}\.media_type must be", None),
        ({"type": "base64", "media_type": ["image/png"], "data": "QQ=="}, rf"{SOURCE}\.media_type must be", None),
    ],
    ids=str,
)
def test_refused(source: Any, complaint: str, code: str | None) -> None:
    with pytest.raises(ApiError, match=complaint) as refused:
        messages_of([user(text("x"), image(source))], None)
    detail = refused.value.detail
    assert (refused.value.status, detail.param, detail.code) == (400, "messages", code)
    with pytest.raises(ApiError, match=r"messages\[0\]\.content\[0\]\.content\[0\]\.source"):
        messages_of([user(result(1, [image(source)]))], None)


def test_what_is_unknown_is_noted() -> None:
    with noting(strict=False) as notes:
        messages_of([user(image({**URL, "width": 1}, title="t", **CACHED))], None)
    assert notes.unknown.header() == "messages[].content[].title, messages[].content[].source.width"


def test_complaints_about_a_chat_name_the_block() -> None:
    raw = {
        "max_tokens": 5,
        "system": "s",
        "messages": [
            user(text("a"), text("b"), image(URL)),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]},
            user(text("c"), result(1, [text("d"), image(URL)]), image(URL)),
        ],
    }
    chat, translated = as_chat(parse_request(raw, MessagesRequest), raw)
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "tool", "user"]
    places = {
        "messages[1].content[1]: image_url is not supported": "messages[0].content[2]: image is not supported",
        "messages[4].content[0]: too large": "messages[2].content[1].content[1]: too large",
        "messages[4].content[2].image_url.url: bad": "messages[2].content[2].image_url.url: bad",
        "messages[4].content[1]: a text": "messages[4].content[1]: a text",
        "messages[3].content[0]: no image": "messages[3].content[0]: no image",
        "messages[9].content[0]: no message": "messages[9].content[0]: no message",
    }
    for complaint, named in places.items():
        with pytest.raises(ApiError) as refused, translated.named():
            raise bad_request(complaint, "messages", "c")
        detail = refused.value.detail
        assert (detail.message, detail.param, detail.code) == (named, "messages", "c")
