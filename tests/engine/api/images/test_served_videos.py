"""Videos in chat requests, through a real server process with a small random model."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest
import torch
from engine_support.image_cases import encode
from engine_support.normalise import image_pixels, normalised_patches
from engine_support.served_vision import ServedVision, part, save_served, user, words
from engine_support.server_process import ServerProcess, running_server
from engine_support.video_references import video_frames
from PIL import Image

from blade_llm.multimodal.processors import QwenProcessor

CHAT: Final = "/v1/chat/completions"
COUNT: Final = 8
FLAGS: Final = (
    *("--load_format", "auto", "--dtype", "float32", "--kv_cache_bytes", "32MiB", "--encoder_cache_bytes", "4MiB"),
    *("--max_num_seqs", "8", "--image_workers", "1", "--image_timeout", "60", "--video_timeout", "60"),
    *("--max_video_frames", "5"),
)
GREEDY: Final = {"temperature": 0, "ignore_eos": True, "max_tokens": COUNT, "return_token_ids": True}
HEIGHT, WIDTH = 40, 56
"""Of frames, which stay so."""
FRAMES: Final = video_frames(3, HEIGHT, WIDTH)
PICTURES: Final = [Image.fromarray(frame) for frame in FRAMES]
SENT: Final = {"type": "video", "video": [part(encode(each, "PNG"))["image_url"]["url"] for each in PICTURES], "fps": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedVision:
    return save_served(tmp_path_factory.mktemp("videos") / "tiny-vision", "qwen2-vl")


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory, model: ServedVision) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("server"), model.folder, *FLAGS, engine="real") as server:
        yield server


def file_url(data: bytes) -> dict[str, Any]:
    url = f"data:video/mp4;base64,{base64.b64encode(data).decode()}"  # a type that nobody looks at
    return {"type": "video_url", "video_url": {"url": url}}


def animation(frames: int) -> bytes:
    first, *others = (Image.fromarray(frame) for frame in video_frames(frames, HEIGHT, WIDTH))
    return encode(first, "PNG", save_all=True, append_images=others, duration=500)


@torch.no_grad()
def greedy(model: ServedVision, tokens: list[int], frames: list[np.ndarray[Any, Any]]) -> list[int]:
    """transformers' continuation of a prompt with one video of these frames, which are as many as patches take."""
    assert isinstance(model.processor, QwenProcessor)
    grid = len(frames) // 2, HEIGHT // 4, WIDTH // 4
    pixels = image_pixels(grid, (len(frames), HEIGHT, WIDTH, 3), b"".join(frame.tobytes() for frame in frames))
    inputs = {
        "pixel_values_videos": torch.from_numpy(normalised_patches(pixels, model.processor)),
        "video_grid_thw": torch.tensor([grid]),
    }
    video, found = model.tokenizer.token_id("<|video_pad|>"), list(tokens)
    for _ in range(COUNT):
        ids = torch.tensor([found])
        logits = model.reference(ids, **inputs, mm_token_type_ids=2 * ids.eq(video).int()).logits
        found.append(int(logits[0, -1].argmax()))
    return found[len(tokens) :]


def refused(server: ServerProcess, *parts: dict[str, Any]) -> dict[str, Any]:
    """The error of a 400."""
    response = server.post(CHAT, messages=[user(*parts)], max_tokens=2)
    assert response.status_code == 400, response.text
    found: dict[str, Any] = response.json()["error"]
    return found


def test_answers_are_those_of_transformers(model: ServedVision, vision: ServerProcess) -> None:
    """Three frames, the last of which fills the second patch, and a file with four."""
    four = video_frames(4, HEIGHT, WIDTH)
    for sent, frames in ((SENT, [*FRAMES, FRAMES[-1]]), (file_url(animation(4)), four)):
        response = vision.post(CHAT, messages=[user(sent, words("what moves?"))], **GREEDY)
        assert response.status_code == 200, response.text
        shown = f"<|vision_start|>{'<|video_pad|>' * 70}<|vision_end|>what moves?"
        text = f"<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n"
        expected = model.tokenizer.encode(text, add_special_tokens=False)
        answer = response.json()
        assert answer["prompt_token_ids"] == expected
        assert answer["choices"][0]["token_ids"] == greedy(model, expected, frames)
        assert vision.post("/tokenize", messages=[user(sent, words("what moves?"))]).json()["tokens"] == expected


def test_what_is_refused(vision: ServerProcess) -> None:
    error = refused(vision, words("look"), file_url(b"\0\0\0\x20ftypisom" + bytes(60)))
    assert error["code"] == "invalid_image"
    assert error["message"].startswith(
        "messages[0].content[1]: the video is MP4, or of its kind, which is not supported"
    )
    error = refused(vision, {**SENT, "video": SENT["video"] * 2})
    assert "6 frames, and the limit is 5 (--max_video_frames)" in error["message"]
    error = refused(vision, *[SENT] * 5)
    assert (error["code"], "--max_videos_per_request" in error["message"]) == ("too_many_images", True)
    error = refused(vision, words("<|video_pad|>"), SENT)
    assert error["code"] == "invalid_prompt"
