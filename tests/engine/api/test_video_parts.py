"""Videos in messages: what is taken, and what is refused and why."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from blade_llm.api.common.errors import ApiError
from blade_llm.api.common.response_notes import noting
from blade_llm.api.conversation import checked_message, content_of
from blade_llm.api.image_parts import ImageParts
from blade_llm.api.images.reader import ImagePart, VideoPart
from blade_llm.multimodal.settings import ImageSettings
from blade_llm.server.openapi import MESSAGE_WITH_IMAGES, MESSAGE_WITH_VIDEOS

TEXT = {"type": "text", "text": "hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "i"}}
FRAMES = {"type": "video", "video": ["a", "b"], "fps": 4}
FILE = {"type": "video_url", "video_url": {"url": "f", "fps": 0.5, "max_pixels": 900}}


def message(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


def taking(most: int = 3, frames: int = 4, **kwargs: Any) -> ImageParts:
    return ImageParts("", 1, kwargs, most, frames)


def error_of(parts: ImageParts, *of_message: Any, role: str = "user") -> tuple[str, str | None, str | None]:
    with pytest.raises(ApiError) as caught:
        checked_message(message(*of_message, role=role), 3, parts)
    assert caught.value.status == 400
    return caught.value.detail.message, caught.value.detail.param, caught.value.detail.code


def test_frames_and_files_beside_images() -> None:
    parts = taking(min_pixels=5)
    shown = checked_message(message(FRAMES, TEXT, IMAGE, FILE), 1, parts)["content"]
    assert shown == [{"type": "video"}, TEXT, {"type": "image"}, {"type": "video"}]
    assert parts.found == [
        VideoPart(("a", "b"), False, 4.0, ImageSettings(None, 5, None), "messages[1].content[0]"),
        ImagePart("i", ImageSettings(None, 5, None), "messages[1].content[2]"),
        VideoPart(("f",), True, 0.5, ImageSettings(None, 5, 900), "messages[1].content[3]"),
    ]
    assert content_of(message(TEXT, FRAMES, TEXT)) == "hello\nhello"


def test_other_spellings() -> None:
    parts = taking()
    sampled = {"type": "video", "video": ["a"], "sample_fps": 3.5}
    checked_message(message(sampled, {"type": "video_url", "video_url": "v"}), 0, parts)
    assert [(part.urls, getattr(part, "fps", 0)) for part in parts.found] == [(("a",), 3.5), (("v",), None)]
    with noting(strict=False) as notes:
        file = {"type": "video_url", "video_url": {"url": "f", "detail": "low"}}
        checked_message(message(file), 0, parts := taking())
    assert notes.unknown.count == 1
    assert parts.found[0].settings == ImageSettings()


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "video", "video": "v"}, "content[0].video must be a list of URLs of frames"),
        ({"type": "video", "video": []}, "content[0].video must be ["),
        ({"type": "video", "video": ["a", 3]}, "content[0].video must be ["),
        ({"type": "video"}, "content[0].video must be ["),
        ({"type": "video", "video": ["a"] * 5}, "has 5 frames, and the limit is 4 (--max_video_frames)"),
        ({**FRAMES, "fps": 0}, "content[0].fps must be a number between 0.001 and 1000"),
        ({**FRAMES, "fps": None, "sample_fps": 0}, "content[0].sample_fps must be a number"),
        ({**FRAMES, "fps": float("nan")}, "fps must be a number"),
        ({**FRAMES, "fps": True}, "fps must be a number"),
        ({**FRAMES, "max_pixels": "9"}, "content[0].max_pixels must be a whole number"),
        ({"type": "video_url"}, "content[0].video_url must be"),
        ({"type": "video_url", "video_url": {"url": "f", "fps": "2"}}, "content[0].video_url.fps must be"),
    ],
)
def test_what_is_no_video(part: dict[str, Any], said: str) -> None:
    found, param, _ = error_of(taking(), part)
    assert said in found
    assert param == "messages"


def test_too_many_and_none_at_all() -> None:
    found, _, code = error_of(taking(most=1), FRAMES, FILE)
    assert "more than 1 videos (--max_videos_per_request)" in found
    assert code == "too_many_images"
    for part in (FRAMES, FILE):
        found, _, code = error_of(ImageParts("", 9), part)
        assert found == (
            f"messages[3].content[0]: {part['type']} is not supported here, only images are; send frames of it as "
            "image_url"
        )
        assert code == "unsupported"
        found, _, code = error_of(ImageParts(), part)
        assert found == f"messages[3].content[0]: {part['type']} is not supported by this model; send text"
    assert "videos belong to messages of the user" in error_of(taking(), FRAMES, role="system")[0]


@pytest.mark.parametrize(
    "part",
    [
        FRAMES,
        FILE,
        {"type": "video", "video": ["a"], "sample_fps": None, "min_pixels": None},
        {"type": "video_url", "video_url": "f"},
        {"type": "video", "video": "v"},
        {"type": "video", "video": []},
        {"type": "video", "video": ["a", 3]},
        {"type": "video"},
        {**FRAMES, "fps": 0},
        {**FRAMES, "fps": True},
        {**FRAMES, "fps": "2"},
        {**FRAMES, "max_pixels": 0},
        {"type": "video_url"},
        {"type": "video_url", "video_url": {"fps": 2}},
        {"type": "video_url", "video_url": {"url": "f", "fps": 1001}},
    ],
)
def test_the_schema_says_what_is_taken(part: dict[str, Any]) -> None:
    try:
        checked_message(message(part), 0, taking())
        taken = True
    except ApiError:
        taken = False
    assert Draft202012Validator(MESSAGE_WITH_VIDEOS).is_valid(message(part)) is taken
    assert not Draft202012Validator(MESSAGE_WITH_IMAGES).is_valid(message(part))
