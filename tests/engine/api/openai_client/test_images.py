"""Pictures through the official client, to a real model: in chats and responses, sync and async, whole and streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import openai
import pytest
from engine_support.image_cases import encode, waves
from engine_support.openai_calls import Way, chat, each_way, response
from engine_support.served_vision import FLAGS, data_url, part, save_served, user, words
from engine_support.server_process import ServerProcess, running_server
from PIL import Image

MODEL: Final = "tiny-vision"
CAT: Final = encode(Image.fromarray(waves(40, 56, 3)), "PNG")
GREEDY: Final = {"model": MODEL, "temperature": 0, "ignore_eos": True}
COUNT: Final = 8


class Vision(NamedTuple):
    server: ServerProcess
    said: str
    """About the cat, in transformers' tokens."""
    prompt_tokens: int


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vision]:
    model = save_served(tmp_path_factory.mktemp("model") / MODEL, "qwen2-vl")
    with running_server(tmp_path_factory.mktemp("server"), model.folder, *FLAGS, engine="real") as server:
        fields = {**GREEDY, "max_tokens": COUNT, "return_token_ids": True}
        plain = server.post("/v1/chat/completions", messages=[user(part(CAT), words("what?"))], **fields).json()
        (choice,) = plain["choices"]
        assert choice["token_ids"] == model.greedy(plain["prompt_token_ids"], [CAT], COUNT)
        assert plain["prompt_token_ids"].count(model.image_token) == model.count(CAT) > 4
        yield Vision(server, choice["message"]["content"], len(plain["prompt_token_ids"]))


def item(*files: bytes) -> dict[str, Any]:
    """Of the Responses API: pictures and a question."""
    pictures = [{"type": "input_image", "image_url": data_url(file), "detail": "auto"} for file in files]
    return {"role": "user", "content": [*pictures, {"type": "input_text", "text": "what?"}]}


@each_way
def test_chats(vision: Vision, way: Way) -> None:
    messages = [user(part(CAT, detail="auto"), words("what?"))]
    reply = chat(vision.server, way, messages=messages, max_tokens=COUNT, **GREEDY)
    assert reply.text == vision.said
    assert reply.usage.prompt_tokens == vision.prompt_tokens
    assert reply.usage.completion_tokens == COUNT


@each_way
def test_responses(vision: Vision, way: Way) -> None:
    final = response(vision.server, way, input=[item(CAT)], max_output_tokens=COUNT, **GREEDY).raw[-1]
    assert final.output_text == vision.said
    assert (final.usage.input_tokens, final.usage.output_tokens) == (vision.prompt_tokens, COUNT)


def test_tokens_of_a_response_are_counted(vision: Vision) -> None:
    client = vision.server.client
    assert client.responses.input_tokens.count(model=MODEL, input=[item(CAT)]).input_tokens == vision.prompt_tokens  # type: ignore[list-item]


@each_way
@pytest.mark.parametrize(
    ("url", "code"),
    [
        (data_url(CAT[: len(CAT) // 2]), "invalid_image"),
        ("data:image/png;base64,%%%", "invalid_image_url"),
        ("http://127.0.0.1/cat.png", "invalid_image_url"),
    ],
    ids=["truncated", "no base64", "private"],
)
def test_broken_ones(vision: Vision, way: Way, url: str, code: str) -> None:
    messages = [user(part(CAT), words("what?"), {"type": "image_url", "image_url": {"url": url}})]
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\]\.content\[2\]") as caught:
        chat(vision.server, way, messages=messages, **GREEDY)
    assert (caught.value.param, caught.value.code) == ("messages", code)
    broken = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    with pytest.raises(openai.BadRequestError, match=r"input\[1\]\.content\[0\]") as caught:
        response(vision.server, way, input=[item(CAT), broken], **GREEDY)
    assert (caught.value.param, caught.value.code) == ("input", code)
