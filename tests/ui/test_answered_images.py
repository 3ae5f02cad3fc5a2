"""A picture from the page through the router to a model that sees it, as the operator starts them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from engine_support.image_cases import encode, waves
from engine_support.served_vision import ServedVision, save_served
from operator_support.loop import loop, manifest
from PIL import Image
from playwright.sync_api import Response, expect
from ui_support.chat import Chat
from ui_support.demo import SECONDS
from ui_support.watched import Open

ENGINE = {"dtype": "float32", "contextLength": 512, "kvCacheBytes": "16Mi", "vision": {"encoderCacheBytes": "8Mi"}}
TOKENS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedVision:
    return save_served(tmp_path_factory.mktemp("model"), "qwen2-vl")


@pytest.fixture(scope="module")
def origin(model: ServedVision, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the router of its service."""
    folder = tmp_path_factory.mktemp("vision")
    with loop(folder, real=True) as running:
        running.start("-f", str(manifest(folder, "qwen", model=model.folder, engine=ENGINE)))
        running.until(lambda: running.ready("qwen"), SECONDS)
        yield f"http://127.0.0.1:{running.port}"


def chunks(response: Response) -> list[dict[str, Any]]:
    """Of a stream that has ended."""
    return [json.loads(line[6:]) for line in response.text().splitlines() if line.startswith("data: {")]


def test_a_picture_is_answered(context: Open, origin: str, model: ServedVision) -> None:
    picture = encode(Image.fromarray(waves(40, 56, 3)), "PNG")
    page = context(origin, width=1600, height=900).page()
    chat = Chat(page)
    chat.greedy()
    chat.set("Max tokens", str(TOKENS))
    chat.set("Ignore end of sequence", "true")
    page.get_by_label("Image files").set_input_files({"name": "waves.png", "mimeType": "", "buffer": picture})
    with page.expect_response("**/v1/chat/completions") as answered:
        chat.ask("What is it?")
    expect(page.get_by_role("alert")).to_have_count(0)
    choices = [choice for chunk in chunks(answered.value) for choice in chunk["choices"]]
    shown = "".join(choice["delta"].get("content") or "" for choice in choices)

    # The same as for the API, and as transformers' own.
    body = (answered.value.request.post_data_json or {}) | {"stream": False, "return_token_ids": True}
    body.pop("stream_options", None)
    response = httpx.post(f"{origin}/v1/chat/completions", json=body, timeout=60, trust_env=False).json()
    assert response["choices"][0]["message"]["content"] == shown != ""
    turn = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is it?<|im_end|>\n"
    prompt = model.prompt(f"{turn}<|im_start|>assistant\n", [picture])
    assert response["choices"][0]["token_ids"] == model.greedy(prompt, [picture], TOKENS)

    # A second question in the same conversation finds the picture in the cache.
    with page.expect_response("**/v1/chat/completions") as answered:
        chat.ask("And where?")
    usage = chunks(answered.value)[-1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= model.count(picture) > 4
