"""Images in chat requests, through a real server process with a small random model: answers are those that transformers
computes for the same conversation, and what is wrong with an image is said to the one who sent it."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from engine_support import image_bombs
from engine_support.image_cases import encode, waves
from engine_support.served_vision import FLAGS, IMAGE, ServedVision, part, save_served, user, words
from engine_support.server_process import ServerProcess, running_server, wait_until
from PIL import Image

from blade_llm.api.generation.kv_blocks import blocks_header
from blade_llm.spec.vision.images import ImageSpan
from blade_protocol import headers, paths
from blade_protocol.state import KV_DIGEST_BYTES

CHAT: Final = "/v1/chat/completions"
COUNT: Final = 8
GREEDY: Final = {"temperature": 0, "ignore_eos": True, "max_tokens": COUNT, "return_token_ids": True}


def file(height: int, width: int) -> bytes:
    return encode(Image.fromarray(waves(height, width, 3)), "PNG")


CAT, DOG, ICON = file(40, 56), file(31, 90), file(1, 2)


@pytest.fixture(scope="module", params=["qwen2-vl", "internvl"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ServedVision:
    return save_served(tmp_path_factory.mktemp(request.param) / "tiny-vision", request.param)


@pytest.fixture(scope="module")
def cat_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a folder that the server may read."""
    path = tmp_path_factory.mktemp("pictures") / "cat.png"
    path.write_bytes(CAT)
    return path


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory, model: ServedVision, cat_file: Path) -> Iterator[ServerProcess]:
    log = model.folder.parent / "payloads"
    flags = (*FLAGS, "--allowed_local_media_path", str(cat_file.parent), "--log_payloads", str(log))
    with running_server(tmp_path_factory.mktemp("vision"), model.folder, *flags, engine="real") as server:
        yield server


def ask(server: ServerProcess, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    response = server.post(CHAT, messages=list(messages), **{**GREEDY, **fields})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def refused(server: ServerProcess, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The error of a 400."""
    response = server.post(CHAT, messages=list(messages), max_tokens=2, **fields)
    assert response.status_code == 400, response.text
    found: dict[str, Any] = response.json()["error"]
    return found


def written(model: ServedVision, *turns: tuple[str, list[str | None]]) -> str:
    """The conversation as the template writes it; None stands for an image."""
    shown = {"qwen2-vl": "<|vision_start|><|image_pad|><|vision_end|>", "internvl": "<IMG_CONTEXT>\n"}[model.family]
    text = "".join(
        f"<|im_start|>{role}\n{''.join(shown if piece is None else piece for piece in pieces)}<|im_end|>\n"
        for role, pieces in turns
    )
    return text + "<|im_start|>assistant\n"


def encoded(server: ServerProcess) -> int:
    """Images that the engine has encoded; it reports that a moment later, when it has no news for a while."""
    before: dict[str, Any] = {}
    state = server.wait_idle()
    while state != before:
        time.sleep(0.5)
        before, state = state, server.wait_idle()
    found: int = state["images"]["encoded"]
    return found


def pieces(digests: bytes) -> list[bytes]:
    return [digests[at : at + KV_DIGEST_BYTES] for at in range(0, len(digests), KV_DIGEST_BYTES)]


def test_answers_are_those_of_transformers(model: ServedVision, vision: ServerProcess) -> None:
    """One image, two with text between them, and one in the result of a tool."""
    cases: list[tuple[list[dict[str, Any]], str, list[bytes]]] = [
        ([user(part(CAT), words("what is it?"))], written(model, ("user", [None, "what is it?"])), [CAT]),
        (
            [
                {"role": "system", "content": "be brief"},
                user(words("compare "), part(CAT), words(" and "), part(DOG), part(ICON)),
            ],
            written(model, ("system", ["be brief"]), ("user", ["compare ", None, " and ", None, None])),
            [CAT, DOG, ICON],
        ),
        (
            [
                {"role": "user", "content": "look"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "c1", "function": {"name": "camera", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": [words("here:"), part(DOG)]},
            ],
            written(model, ("user", ["look"]), ("assistant", [""]), ("tool", ["here:", None])),
            [DOG],
        ),
    ]
    for messages, text, files in cases:
        expected = model.prompt(text, files)
        answer = ask(vision, *messages)
        assert answer["prompt_token_ids"] == expected
        assert expected.count(model.image_token) == model.count(*files)
        assert answer["choices"][0]["token_ids"] == model.greedy(expected, files, COUNT)
        assert answer["usage"]["prompt_tokens"] == len(expected)


def test_a_second_question_about_a_picture_encodes_nothing(model: ServedVision, vision: ServerProcess) -> None:
    picture = file(44, 60)
    question = user(words("a question that takes some blocks of text: "), part(picture), words("where is it?"))
    first = ask(vision, question)
    before = encoded(vision)
    said = first["choices"][0]["message"]["content"]
    second = ask(vision, question, {"role": "assistant", "content": said}, {"role": "user", "content": "why?"})
    images = model.count(picture)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= images
    assert encoded(vision) == before
    other = ask(vision, user(words("a question that takes some blocks of text: "), part(file(44, 61)), words("?")))
    assert encoded(vision) == before + 1
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] < len(first["prompt_token_ids"])


def test_the_blocks_that_a_router_is_told_are_those_of_the_engine(model: ServedVision, vision: ServerProcess) -> None:
    body = {"messages": [user(part(DOG), words("x" * 90))], **GREEDY}
    response = httpx.post(f"{vision.url}{CHAT}", json=body, headers={headers.KV_BLOCKS: "1"}, timeout=60)
    token_ids = response.json()["prompt_token_ids"]
    told = response.headers[headers.KV_BLOCKS]
    assert told != blocks_header(token_ids)  # without the image
    stride, _, digests = told.partition(":")
    wanted = pieces(base64.b64decode(digests))
    assert len(wanted) == len(token_ids) // 16 // int(stride) > 0

    def known() -> set[bytes]:
        snapshot = httpx.get(f"{vision.internal_url}/internal/kv", timeout=10).json()
        return set(pieces(base64.b64decode(snapshot["digests"])))

    wait_until(lambda: known().issuperset(wanted))
    start = token_ids.index(model.image_token)
    grid = (1, 2, 2)
    span = ImageSpan(start, model.count(DOG), bytes(32), grid)
    assert blocks_header(token_ids, images=[span]) != told  # another image in its place


def test_streams_and_files_and_counting(cat_file: Path, vision: ServerProcess) -> None:
    message = user({"type": "image_url", "image_url": {"url": cat_file.as_uri()}}, words("what?"))
    whole = ask(vision, message)
    assert whole["prompt_token_ids"] == ask(vision, user(part(CAT), words("what?")))["prompt_token_ids"]
    response = vision.post(CHAT, messages=[message], stream=True, **GREEDY)
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    said = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert said == whole["choices"][0]["message"]["content"]
    tokens = vision.post("/tokenize", messages=[message]).json()
    assert tokens["tokens"] == whole["prompt_token_ids"]
    assert tokens["count"] == whole["usage"]["prompt_tokens"]


def test_smaller_ones_have_fewer_tokens(model: ServedVision, vision: ServerProcess) -> None:
    large = file(90, 110)
    whole = ask(vision, user(part(large)))["usage"]["prompt_tokens"]
    bounds = {"max_pixels": 256}
    for fields, kwargs in ((bounds, {}), ({}, {"mm_processor_kwargs": bounds})):
        fewer = ask(vision, user(part(large, **fields)), **kwargs)["usage"]["prompt_tokens"]
        assert fewer < whole
    assert ask(vision, user(part(large, detail="high")))["usage"]["prompt_tokens"] == whole


def test_embeddings_are_of_texts(vision: ServerProcess) -> None:
    for given in ([part(CAT)], [words("a cat"), part(CAT)]):
        response = vision.post("/v1/embeddings", input=given)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "input")
        assert error["message"] == "input must be text, a list of token ids, or a list of either"


def test_a_turn_that_goes_on(model: ServedVision, vision: ServerProcess) -> None:
    """The last message is continued, and so is text that was generated."""
    question = user(part(CAT), words("what is it?"))
    plain = written(model, ("user", [None, "what is it?"])) + "A ca"
    expected = model.prompt(plain, [CAT])
    begun = {"role": "assistant", "content": "A ca"}
    for fields in (
        {"messages": [question, begun], "continue_final_message": True},
        {"messages": [question], "resume_response": "A ca"},
    ):
        answer = vision.post(CHAT, **GREEDY, **fields).json()
        assert answer["prompt_token_ids"] == expected
        assert answer["choices"][0]["token_ids"] == model.greedy(expected, [CAT], COUNT)
    error = refused(vision, user(words("see "), part(CAT)), continue_final_message=True)
    assert error["param"] == "continue_final_message"
    assert "ends with an image" in error["message"]


def test_a_stream_is_gone_on_with_where_the_url_shows_the_same_picture(cat_file: Path, vision: ServerProcess) -> None:
    path = cat_file.with_name("changes.png")
    path.write_bytes(CAT)
    message = user({"type": "image_url", "image_url": {"url": path.as_uri()}}, words("what?"))
    whole = ask(vision, message, n=2)
    first, second = (choice["token_ids"] for choice in whole["choices"])
    assert first == second
    body = {"messages": [message], "stream": True, "seed": 7, **GREEDY}
    begun = httpx.post(f"{vision.url}{CHAT}", json=body, headers={headers.STREAM_IDS: "1"}, timeout=60)

    def resume() -> httpx.Response:
        request = {
            "path": CHAT, "request": body, "request_id": "r", "created": 1, "seed": 7,
            "prompt_digest": begun.headers[headers.PROMPT_DIGEST], "token_ids": [[token] for token in first[:3]],
        }  # fmt: skip
        return httpx.post(f"{vision.internal_url}{paths.INTERNAL_RESUME}", json=request, timeout=60)

    rest = [json.loads(line[6:]) for line in resume().text.splitlines() if line.startswith("data: {")]
    assert [token for chunk in rest for choice in chunk["choices"] for token in choice["token_ids"]] == first[3:]
    path.write_bytes(DOG)
    assert resume().status_code == 409


BAD: Final[dict[str, tuple[Any, str, str]]] = {
    "truncated": (part(CAT[: len(CAT) // 2]), "truncated or broken", "invalid_image"),
    "no image": (part(b"hello, I am no picture"), "of no known format", "invalid_image"),
    "SVG": (part(image_bombs.SVG), "the image is SVG", "invalid_image"),
    "1 x 1": (part(file(1, 1)), "nothing to see", "invalid_image"),
    "not base64": (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}, "data:image/png", "invalid_image_url",
    ),
    "private": (
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:80/cat.png"}}, "http://127.0.0.1",
        "invalid_image_url",
    ),
    "metadata": (
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/"}}, "http://169.254.169.254",
        "invalid_image_url",
    ),
    "file": ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "file:", "invalid_image_url"),
    "scheme": ({"type": "image_url", "image_url": {"url": "ftp://cdn.example/x"}}, "ftp:", "invalid_image_url"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_an_image(vision: ServerProcess, name: str) -> None:
    bad, said, code = BAD[name]
    error = refused(vision, user(part(CAT), bad, words("what?")))
    assert (error["param"], error["code"]) == ("messages", code)
    assert said in error["message"]
    assert error["message"].startswith("messages[0].content[1]: ")
    ask(vision, user(part(CAT)))  # of that request alone


def test_text_that_stands_for_an_image(model: ServedVision, vision: ServerProcess) -> None:
    token = IMAGE[model.family]
    half = len(token) // 2
    call = {"id": "c1", "function": {"name": "f", "arguments": json.dumps({"x": token}).replace("<", "\\u003c")}}
    for messages in (
        [{"role": "user", "content": f"hello {token}"}],
        [user(words(f"hello {token}"), part(CAT))],
        [user(part(CAT), words(token[:half]), words(token[half:]))],
        [user(part(CAT)), {"role": "assistant", "content": token}, {"role": "user", "content": "?"}],
        [user(part(CAT)), {"role": "assistant", "tool_calls": [call]}],
    ):
        error = refused(vision, *messages)
        assert (error["param"], error["code"]) == ("messages", "invalid_prompt")
        assert token in error["message"]
    assert refused(vision, user(part(CAT)), documents=[{"text": token}])["code"] == "invalid_prompt"


def test_limits_and_places(model: ServedVision, vision: ServerProcess) -> None:
    error = refused(vision, user(*[part(ICON)] * 65))
    assert (error["param"], error["code"]) == ("messages", "too_many_images")
    assert "64 images" in error["message"]
    for role in ("system", "assistant"):
        error = refused(vision, {"role": role, "content": [part(CAT)]}, {"role": "user", "content": "?"})
        assert error["code"] == "unsupported"
        assert f"role {role}" in error["message"]
    error = refused(vision, user(part(CAT), words("x")), truncate_prompt_tokens=5)
    assert error["param"] == "truncate_prompt_tokens"
    error = refused(vision, user(part(CAT)), chat_template="{{ messages[0].role }}")
    assert "shows 0 of 1 images" in error["message"]
    error = refused(vision, user(part(CAT, detail="huge")))
    assert "messages[0].content[0].image_url.detail" in error["message"]
    error = refused(vision, user(*[part(file(60 + n, 90)) for n in range(64)]))
    assert error["code"] == "context_length_exceeded"
    assert "for 64 images" in error["message"]


def test_no_bytes_of_images_are_logged_and_what_they_took_is_counted(
    model: ServedVision, vision: ServerProcess
) -> None:
    ask(vision, user(part(CAT), words("to be logged")))
    log = model.folder.parent / "payloads"
    wait_until(lambda: "to be logged" in log.read_text())
    lines = [line for line in log.read_text().splitlines() if "to be logged" in line]
    assert json.loads(lines[-1])["images"] == 1
    assert not any("base64" in line for line in lines)
    metrics = httpx.get(f"{vision.url}/metrics", timeout=10).text
    for name in ("images_total", "image_bytes_total", "images_encoded_total", "image_seconds_total"):
        found = re.search(rf"^blade_llm_{name}\S* (\S+)$", metrics, re.M)
        assert found is not None, name
        assert float(found[1]) > 0


def test_a_server_that_reads_text_alone(tmp_path: Path, model: ServedVision) -> None:
    with running_server(tmp_path, model.folder, *FLAGS, "--with_visual", "false", engine="real") as server:
        error = refused(server, user(part(CAT)))
        assert (error["param"], error["code"]) == ("messages", "unsupported")
        assert "--with_visual false" in error["message"]
        prompt = ask(server, {"role": "user", "content": "hello"})
        assert prompt["choices"][0]["token_ids"] == model.greedy(prompt["prompt_token_ids"], [], COUNT)
        assert server.state()["memory"]["encoder"] == 0
        assert server.state()["images"] is None
