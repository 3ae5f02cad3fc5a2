"""``input_image`` of a response's request as the part of a chat, and in responses that are kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from blade_llm.api.common.errors import ApiError, bad_request
from blade_llm.api.common.response_notes import noting
from blade_llm.api.common.response_store import ResponseStore, ResponseStoreOptions
from blade_llm.api.responses.as_chat import FIELD_NAMES, as_chat
from blade_llm.api.responses.conversation import messages_of
from blade_llm.api.responses.functions import read_tools
from blade_llm.api.responses.memory import Kept, earlier_items, own_items
from blade_llm.api.responses.references import item_number, resolved
from blade_llm.api.responses.requests import parse_request

OTHERS = ("system", "developer", "assistant")
CAT, DOG = "data:image/png;base64,QQ==", "https://a.example/dog.png"


def image(url: Any, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url, **more}


def text(content: str) -> dict[str, Any]:
    return {"type": "input_text", "text": content}


def user(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [*parts]}


def call(number: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{number}", "name": "see", "arguments": "{}"}


def output(number: int, content: Any, kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": f"call_{number}", "output": content}


def part(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def said(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def test_images_stand_among_the_texts() -> None:
    parts = [text("a"), text("b"), image(CAT, detail="low"), image(DOG, file_id=None, detail=None), text("c")]
    assert messages_of([user(*parts)], "be brief").messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [said("a\nb"), part(CAT, detail="low"), part(DOG), said("c")]},
    ]


@pytest.mark.parametrize("detail", ["auto", "low", "high", "original"])
def test_detail(detail: str) -> None:
    (message,) = messages_of([user(image(CAT, detail=detail))], None).messages
    assert message == {"role": "user", "content": [part(CAT, detail=detail)]}


def test_texts_alone_stay_one_text() -> None:
    assert messages_of([user(text("a"), text(""), text("b")), output(1, [text("c"), text("d")])], None).messages == [
        {"role": "user", "content": "a\n\nb"},
        {"role": "tool", "tool_call_id": "call_1", "content": "c\nd"},
    ]


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
def test_those_of_outputs_follow_in_a_message_of_the_user(kind: str) -> None:
    """Outputs of calls made at once stay together."""
    items = [
        *(call(1), call(2), output(1, [text("one"), image(CAT), text("more")], kind), output(2, [image(DOG)], kind)),
        *(call(3), output(3, "three", kind), user(text("x"))),
    ]
    found = messages_of(items, None).messages
    assert [message["role"] for message in found] == ["assistant", "tool", "tool", "user", "assistant", "tool", "user"]
    assert [message["content"] for message in found] == ["", "one\nmore", "", [part(CAT), part(DOG)], "", "three", "x"]


def test_those_of_the_last_output_stand_at_the_end() -> None:
    assert messages_of([output(1, [image(CAT)])], None).messages == [
        {"role": "tool", "tool_call_id": "call_1", "content": ""},
        {"role": "user", "content": [part(CAT)]},
    ]


def test_a_chat_has_them_in_its_request_and_copies_no_data() -> None:
    url = "data:image/png;base64," + "A" * 1_000_000
    raw = {"input": [user(image(url), text("a"))]}
    fields, tools = parse_request(raw), read_tools([])
    chat = as_chat(fields, raw, tools, messages_of(fields.input, None).messages)
    assert chat.messages == [{"role": "user", "content": [part(url), said("a")]}]
    assert chat.messages[0]["content"][0]["image_url"]["url"] is url


WHERE = r"input\[1\]\.content\[1\]"


@pytest.mark.parametrize(
    ("given", "complaint", "code"),
    [
        ({"type": "input_image", "file_id": "file-1"}, rf"{WHERE}: file_id is not supported", "unsupported"),
        (image(CAT, file_id="file-1"), rf"{WHERE}: file_id is not supported", "unsupported"),
        ({"type": "input_image"}, rf"{WHERE}\.image_url must be a string", None),
        (image(None), rf"{WHERE}\.image_url must be a string", None),
        (image({"url": CAT}), rf"{WHERE}\.image_url must be a string", None),
        (image(CAT, detail="tiny"), rf"{WHERE}\.detail must be auto, low, high or original", None),
        (image(CAT, detail=["low"]), rf"{WHERE}\.detail must be", None),
        (
            {"type": "input_file", "file_data": CAT},
            rf"{WHERE}: input_file is not supported by this model",
            "unsupported",
        ),
    ],
    ids=str,
)
def test_refused(given: dict[str, Any], complaint: str, code: str | None) -> None:
    items = [user(text("x")), user(text("x"), given)]
    with pytest.raises(ApiError, match=complaint) as refused:
        messages_of(items, None)
    detail = refused.value.detail
    assert (refused.value.status, detail.param, detail.code) == (400, "input", code)
    with pytest.raises(ApiError, match=r"input\[0\]\.output\[0\]"):
        messages_of([output(1, [given])], None)


@pytest.mark.parametrize(
    ("item", "place", "owner"),
    [
        *((user(text("x"), image(CAT), role=role), "content[1]", f"role {role}") for role in OTHERS),
        ({"type": "reasoning", "content": [image(CAT)]}, "content[0]", "reasoning"),
        ({"type": "reasoning", "summary": [image(CAT)]}, "summary[0]", "reasoning"),
    ],
)
def test_they_belong_to_the_user_and_to_outputs(item: dict[str, Any], place: str, owner: str) -> None:
    with pytest.raises(ApiError) as refused:
        messages_of([item], None)
    detail = refused.value.detail
    belong = "images belong to messages of the user and to outputs of calls"
    assert detail.message == f"input[0].{place}: {belong}, not to {owner}"
    assert (detail.param, detail.code) == ("input", "unsupported")


def test_what_is_unknown_is_noted() -> None:
    with noting(strict=False) as notes:
        messages_of([user(image(CAT, max_pixels=1))], None)
    assert notes.unknown.header() == "input[].content[].max_pixels"


def test_complaints_about_a_chat_name_the_part() -> None:
    """Also where truncation left messages out of it."""
    items = [user(text("a")), user(text("b"), text("c"), image(DOG)), call(1), output(1, [text("d"), image(CAT)])]
    translated = messages_of(items, "s", [user(image(CAT))])
    whole = translated.messages
    cases = [
        (None, "messages[1].content[0]: image_url is not", "previous_response_id.content[0]: input_image is not"),
        (None, "messages[3].content[1]: image_url is not", "input[1].content[2]: input_image is not"),
        (None, "messages[6].content[0].image_url.url: bad", "input[3].output[1].image_url.url: bad"),
        ([whole[0], *whole[3:]], "messages[1].content[1]: too large", "input[1].content[2]: too large"),
        ([whole[0], *whole[3:]], "messages[3].content[0]: no image", "input[3].content[0]: no image"),
        (None, "messages[1].role", "input[1].role"),
    ]
    for kept, complaint, named in cases:
        with pytest.raises(ApiError) as refused, FIELD_NAMES.named(), translated.named(kept):
            raise bad_request(complaint, "messages", "c")
        detail = refused.value.detail
        assert (detail.message, detail.param, detail.code) == (named, "input", "c")


def _kept(previous: str | None, items: list[Any], response: str) -> bytes:
    answer = {"id": f"msg_{item_number(response)}_0", "type": "message", "role": "assistant", "content": "b"}
    body = {"id": response, "output": [answer]}
    return msgspec.json.encode(Kept(owner="me", previous=previous, input=own_items(items), response=body))


def _context(folder: Path, **limits: int) -> Any:
    options = ResponseStoreOptions(folder=str(folder / "kept"), max_bytes=limits.get("max_bytes", 100_000))
    return SimpleNamespace(responses=ResponseStore(options), max_body_bytes=limits.get("max_body_bytes", 100_000))


def test_kept_responses_have_their_images(tmp_path: Path) -> None:
    context, names = _context(tmp_path), [f"resp_{number:032x}" for number in range(2)]
    turns: list[list[Any]] = [
        [user(text("a"), image(CAT, detail="low"))],
        [call(1), output(1, [image(DOG)]), user(text("c"))],
    ]
    for name, previous, items in zip(names, [None, names[0]], turns, strict=True):
        assert context.responses.put(name, _kept(previous, items, name))
    earlier = earlier_items(context, names[1], "me")
    reference = {"type": "item_reference", "id": f"msg_{item_number(names[0])}_0"}
    given = resolved(context, [reference, user(image(CAT))], "me")
    assert [message["content"] for message in messages_of(given, None, earlier).messages] == [
        *([said("a"), part(CAT, detail="low")], "b", "", [part(DOG)], "c", "b"),
        *("b", [part(CAT)]),
    ]


def test_images_count_in_the_bytes_of_kept_responses(tmp_path: Path) -> None:
    items, name = [user(image("data:image/png;base64," + "A" * 50_000))], f"resp_{0:032x}"
    value = _kept(None, items, name)
    assert not _context(tmp_path, max_bytes=50_000).responses.put(name, value)
    context = _context(tmp_path, max_body_bytes=50_000)
    assert context.responses.put(name, value)
    with pytest.raises(ApiError, match="exceeds 50000 bytes"):
        earlier_items(context, name, "me")
