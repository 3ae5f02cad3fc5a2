"""Images in the messages of a conversation: taken out in order, and shown to the chat template in their places."""

from __future__ import annotations

from typing import Any

import pytest

from blade_llm.api.common.errors import ApiError
from blade_llm.api.common.response_notes import noting
from blade_llm.api.conversation import checked_message, content_of
from blade_llm.api.image_parts import ImageParts
from blade_llm.multimodal.settings import ImageSettings

TEXT = {"type": "text", "text": "hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,x"}}


def message(*parts: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": list(parts), **fields}


def error_of(parts: ImageParts, *of_message: Any, **fields: Any) -> tuple[str, str | None, str | None]:
    with pytest.raises(ApiError) as caught:
        checked_message(message(*of_message, **fields), 3, parts)
    detail = caught.value.detail
    assert caught.value.status == 400
    return detail.message, detail.param, detail.code


def test_texts_alone_are_joined_and_texts_beside_images_are_not() -> None:
    parts = ImageParts("", 9)
    assert checked_message(message(TEXT, TEXT), 0, parts)["content"] == "hello\nhello"
    assert checked_message(message(TEXT, IMAGE, TEXT), 1, parts)["content"] == [TEXT, {"type": "image"}, TEXT]
    answer = checked_message(message(IMAGE, role="tool", tool_call_id="c"), 2, parts)
    assert answer["content"] == [{"type": "image"}]
    assert [part.where for part in parts.found] == ["messages[1].content[1]", "messages[2].content[0]"]
    assert content_of(message(TEXT, IMAGE, TEXT)) == "hello\nhello"


def test_what_a_request_says_about_an_image() -> None:
    parts = ImageParts("", 9, {"max_pixels": 500, "size": {"shortest_edge": 3}})
    given = {"url": "u", "detail": "low", "min_pixels": 7, "max_pixels": None}
    with noting(strict=False) as notes:
        checked_message(message({"type": "image_url", "image_url": given | {"uuid": "1"}}), 0, parts)
    assert notes.unknown.count == 1
    checked_message(message({"type": "image_url", "image_url": "v"}), 0, parts)
    assert [(part.url, part.settings) for part in parts.found] == [
        ("u", ImageSettings("low", 7, 500)),
        ("v", ImageSettings(None, 3, 500)),
    ]
    unknown = ImageParts("", 9, {"do_resize": False})
    assert error_of(unknown, IMAGE)[1] == "mm_processor_kwargs"
    checked_message(message(TEXT), 0, unknown)  # which changes nothing without an image


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"type": "image_url"}, "messages[3].content[0].image_url must be"),
        ({"type": "image_url", "image_url": {"detail": "low"}}, "image_url must be"),
        ({"type": "image_url", "image_url": {"url": 3}}, "image_url must be"),
        ({"type": "image_url", "image_url": {"url": "u", "detail": "tiny"}}, "image_url.detail must be one of auto"),
        ({"type": "image_url", "image_url": {"url": "u", "detail": []}}, "image_url.detail must be one of auto"),
        ({"type": "image_url", "image_url": {"url": "u", "max_pixels": "9"}}, "image_url.max_pixels must be a whole"),
        ({"type": "image_url", "image_url": {"url": "u", "min_pixels": True}}, "image_url.min_pixels must be a whole"),
        ({"type": "image"}, 'must be {"type": "text"'),
    ],
)
def test_what_is_no_image(given: dict[str, Any], said: str) -> None:
    found, param, _ = error_of(ImageParts("", 9), given)
    assert said in found
    assert param == "messages"


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_who_shows_images(role: str) -> None:
    found, param, code = error_of(ImageParts("", 9), TEXT, IMAGE, role=role)
    assert found == (
        f"messages[3].content[1]: images belong to messages of the user and to results of tools, not to role {role}"
    )
    assert (param, code) == ("messages", "unsupported")


def test_too_many_and_none_at_all() -> None:
    found, param, code = error_of(ImageParts("", 2), IMAGE, IMAGE, IMAGE)
    assert "more than 2 images (--max_images_per_request)" in found
    assert (param, code) == ("messages", "too_many_images")
    found, param, code = error_of(ImageParts(), IMAGE)
    assert found == "messages[3].content[0]: image_url is not supported by this model; send text"
    assert (param, code) == ("messages", "unsupported")
    assert "--with_visual" in error_of(ImageParts("is refused (--with_visual false)"), IMAGE)[0]
