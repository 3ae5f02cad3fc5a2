"""Images in Anthropic's messages and in responses, through a real server process: prompts and answers are those of the
equivalent chat."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
from engine_support.image_cases import encode, waves
from engine_support.served_vision import ServedVision, part, save_served, user, words
from engine_support.server_process import ServerProcess, running_server
from PIL import Image

FLAGS: Final = (
    *("--load_format", "auto", "--dtype", "float32", "--kv_cache_bytes", "32MiB", "--encoder_cache_bytes", "4MiB"),
    *("--max_num_seqs", "8", "--image_workers", "1", "--image_timeout", "60", "--max_images_per_request", "3"),
)
GREEDY: Final = {"temperature": 0, "ignore_eos": True}


def file(height: int, width: int) -> bytes:
    return encode(Image.fromarray(waves(height, width, 3)), "PNG")


CAT, DOG = file(40, 56), file(31, 90)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedVision:
    return save_served(tmp_path_factory.mktemp("qwen2-vl") / "tiny-vision", "qwen2-vl")


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory, model: ServedVision) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("vision"), model.folder, *FLAGS, engine="real") as server:
        yield server


def block(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def item_part(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": f"data:image/png;base64,{base64.b64encode(data).decode()}", **more}


def item_words(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def post(server: ServerProcess, path: str, **fields: Any) -> dict[str, Any]:
    response = server.post(path, **fields)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def chat(server: ServerProcess, *messages: dict[str, Any]) -> tuple[str, int]:
    """The text, and the number of tokens of the prompt."""
    found = post(server, "/v1/chat/completions", messages=list(messages), max_tokens=8, **GREEDY)
    return found["choices"][0]["message"]["content"], found["usage"]["prompt_tokens"]


def message(server: ServerProcess, *messages: dict[str, Any]) -> tuple[str, int]:
    found = post(server, "/v1/messages", messages=list(messages), max_tokens=8, **GREEDY)
    usage = found["usage"]
    counted = post(server, "/v1/messages/count_tokens", messages=list(messages))["input_tokens"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
    return found["content"][0]["text"], counted


def response(server: ServerProcess, *items: dict[str, Any], **fields: Any) -> tuple[str, int, str]:
    found = post(server, "/v1/responses", input=list(items), max_output_tokens=8, **GREEDY, **fields)
    tokens = found["usage"]["input_tokens"]
    assert post(server, "/v1/responses/input_tokens", input=list(items), **fields)["input_tokens"] == tokens
    return found["output"][0]["content"][0]["text"], tokens, found["id"]


def test_images_of_the_user(vision: ServerProcess) -> None:
    expected = chat(vision, user(words("what"), part(CAT), words("and"), part(DOG)))
    blocks = [words("what"), block(CAT), words("and"), block(DOG)]
    assert message(vision, user(*blocks)) == expected
    parts = [item_words("what"), item_part(CAT), item_words("and"), item_part(DOG, detail="original")]
    assert response(vision, user(*parts))[:2] == expected


def test_images_of_results(vision: ServerProcess) -> None:
    use = {"type": "tool_use", "id": "c1", "name": "camera", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [words("here"), block(DOG)]}
    call = {"id": "c1", "type": "function", "function": {"name": "camera", "arguments": "{}"}}
    before = [{"role": "user", "content": "look"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    tool = {"role": "tool", "tool_call_id": "c1", "content": "here"}
    expected = chat(vision, *before, tool, user(part(DOG)))
    asked: list[dict[str, Any]] = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [use]},
        user(result),
    ]
    assert message(vision, *asked) == expected
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "c1", "name": "camera", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [item_words("here"), item_part(DOG)]},
    ]
    assert response(vision, *items)[:2] == expected


def test_a_kept_response_has_its_image(vision: ServerProcess) -> None:
    said, _, name = response(vision, user(item_part(CAT), item_words("a")))
    expected = chat(vision, user(part(CAT), words("a")), {"role": "assistant", "content": said}, user(words("b")))
    assert response(vision, user(item_words("b")), previous_response_id=name)[:2] == expected
    listed = httpx.get(f"{vision.url}/v1/responses/{name}/input_items").json()["data"]
    assert [item["content"] for item in listed] == [[item_part(CAT), item_words("a")]]


def test_truncation_leaves_images_out(vision: ServerProcess) -> None:
    last = user(item_part(CAT), item_words("b"))
    limit = post(vision, "/tokenize", prompt="x")["max_model_len"]
    long = [user(item_part(DOG), item_words("x" * limit)), {"role": "assistant", "content": "z"}, last]
    found = post(vision, "/v1/responses", input=long, max_output_tokens=8, truncation="auto", **GREEDY)
    assert (found["output"][0]["content"][0]["text"], found["usage"]["input_tokens"]) == response(vision, last)[:2]


def test_a_bad_image_is_named(vision: ServerProcess) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "#"}
    result = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [words("here"), {"type": "image", "source": source}],
    }
    wrong = vision.post("/v1/messages", messages=[user(words("a"), result)], max_tokens=2)
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "invalid_request_error")
    assert wrong.json()["error"]["message"].startswith("messages[0].content[1].content[1]: "), wrong.text
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        user(item_part(CAT), item_words("x"), {"type": "input_image", "image_url": "data:x"}),
    ]
    error = vision.post("/v1/responses", input=items).json()["error"]
    assert error["message"].startswith("input[1].content[2]: "), error
    assert (error["param"], error["code"]) == ("input", "invalid_image_url")
    many = vision.post("/v1/messages", messages=[user(*[block(CAT)] * 4)], max_tokens=2).json()
    assert (many["type"], many["error"]["type"]) == ("error", "invalid_request_error")
    assert "more than 3 images" in many["error"]["message"]
    error = vision.post("/v1/responses", input=[user(*[item_part(CAT)] * 4)]).json()["error"]
    assert (error["param"], error["code"]) == ("input", "too_many_images")
