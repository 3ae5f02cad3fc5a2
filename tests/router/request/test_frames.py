"""Videos as lists of their frames: one video, whose frames are files and no text."""

import base64
import json
import random
from typing import Any

import pytest

from blade_router.admission.tokens import text_bytes
from blade_router.http.errors import Refused
from blade_router.http.head import RawRequest
from blade_router.request.abridge import abridge_at_once
from blade_router.request.media import IMAGE_TOKENS, NO_MEDIA
from blade_router.request.part_limits import PartLimits
from blade_router.request.prompt_text import BLOCK, IMAGE_BLOCKS
from blade_router.request.request import ClientRequest, read_request

SIZES = [400, 60_000, 600_000]
"""Of frames: in a small body, in one parsed whole, in one abridged."""
TEXT = {"type": "text", "text": "What moves?"}


async def read(*parts: dict[str, Any], indent: int | None = None, **fields: Any) -> ClientRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": [*parts, TEXT]}], **fields}
    data = json.dumps(body, indent=indent).encode()
    return await read_request(RawRequest(b"POST", b"/v1/chat/completions", [], True, True, body=data))


def frame(size: int, seed: int = 0) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(random.Random(seed).randbytes(size)).decode()


def video(*frames: str) -> dict[str, Any]:
    return {"type": "video", "video": [*frames], "fps": 2}


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("size", SIZES)
async def test_frames_are_files_of_one_video(size: int, indent: int | None) -> None:
    one = video(*[frame(size, seed) for seed in range(3)], frame(20), frame(size, 4))
    found = await read(one, indent=indent)
    assert (found.media.images, found.media.files) == (1, 4)
    assert found.media.tokens == 4 * IMAGE_TOKENS
    assert text_bytes(found) < 1500, "no frame counts as text"
    assert found.prompt.size < 2 * IMAGE_BLOCKS * BLOCK
    with pytest.raises(Refused, match="2 images and videos"):
        PartLimits(1).check(await read(one, one, indent=indent))


@pytest.mark.parametrize("size", SIZES)
async def test_videos_that_differ_in_the_last_frame_differ(size: int) -> None:
    same, other = [video(*[frame(size, seed) for seed in (*range(4), last)]) for last in (4, 5)]
    first, again, changed = [(await read(each)).prompt.chain for each in (same, same, other)]
    assert first == again
    assert not set(first) & set(changed)


async def test_frames_elsewhere_are_one_video() -> None:
    found = await read(video("https://a.b/1.png", "https://a.b/2.png"))
    assert (found.media.images, found.media.files) == (1, 0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("url", ["https://a.b/1.png", "https://a.b/" + 70 * "1"])
async def test_frames_elsewhere_beside_others(url: str, size: int) -> None:
    found = await read(video(url, frame(size), url, url, frame(size, 1), url))
    assert (found.media.images, found.media.files) == (1, 2)
    assert text_bytes(found) < 1000


@pytest.mark.parametrize("size", SIZES)
async def test_lists_of_texts_that_look_like_frames_are_texts(size: int) -> None:
    found = await read(documents=[frame(size), frame(size, 1)])
    assert found.media is NO_MEDIA
    assert text_bytes(found) == len(found.body)


def test_texts_behind_a_video_are_texts() -> None:
    body = json.dumps({"a": video(frame(3000)), "b": [frame(3000, 1), frame(3000, 2)]}).encode()
    assert abridge_at_once(body).files == 1
