"""vLLM's ``return_token_ids``, ``echo`` of a chat, ``return_prompt_text``, ``request_id`` and ``truncation_side``."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from engine_support.server_process import ServerProcess

HELLO = [{"role": "user", "content": "hello"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {CHAT: {"messages": HELLO}, TEXT: {"prompt": "hello"}}


def _chunks(server: ServerProcess, path: str, **body: Any) -> list[dict[str, Any]]:
    response = server.post(path, **body, stream=True)
    assert response.status_code == 200, response.text
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]


def _prompt_ids(server: ServerProcess, path: str) -> list[int]:
    found: list[int] = server.post("/tokenize", **BODIES[path]).json()["tokens"]
    return found


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("extra", [{}, {"ignore_eos": True}, {"n": 2}, {"logprobs": True}])
def test_a_whole_response_has_them(server: ServerProcess, path: str, extra: dict[str, Any]) -> None:
    body = {**BODIES[path], "max_tokens": 6, "seed": 1, **extra}
    if path == TEXT and "logprobs" in extra:
        body["logprobs"] = 1
    response = server.post(path, **body, return_token_ids=True).json()
    prompt = response if path == CHAT else response["choices"][0]
    assert prompt["prompt_token_ids"] == _prompt_ids(server, path)
    count = sum(len(choice["token_ids"]) for choice in response["choices"])
    assert count == response["usage"]["completion_tokens"]
    for choice in response["choices"]:
        text = choice["text"] if path == TEXT else choice["message"]["content"]
        ids = choice["token_ids"]
        assert server.post("/detokenize", tokens=ids).json()["prompt"].startswith(text)
    plain = server.post(path, **body).json()
    assert "token_ids" not in plain["choices"][0]
    assert "prompt_token_ids" not in {**plain, **plain["choices"][0]}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_has_the_same(server: ServerProcess, path: str, n: int) -> None:
    body = {**BODIES[path], "max_tokens": 6, "seed": 1, "n": n, "return_token_ids": True}
    whole = server.post(path, **body).json()
    chunks = _chunks(server, path, **body)
    for index in range(n):
        mine = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        ids = [token_id for chunk in mine for token_id in chunk["choices"][0].get("token_ids", ())]
        assert ids == whole["choices"][index]["token_ids"]
        holders = mine if path == CHAT else [chunk["choices"][0] for chunk in mine]
        assert [holder.get("prompt_token_ids") for holder in holders] == [
            _prompt_ids(server, path),
            *[None] * (len(mine) - 1),
        ]


def test_tokens_of_the_end_count(server: ServerProcess) -> None:
    body = {**BODIES[TEXT], "max_tokens": 50, "seed": 3, "return_token_ids": True}
    first = server.post(TEXT, **body, ignore_eos=True).json()["choices"][0]["token_ids"]
    stopped = server.post(TEXT, **body, ignore_eos=True, stop_token_ids=[first[4]]).json()
    ids = stopped["choices"][0]["token_ids"]
    assert ids == first[: first.index(first[4]) + 1]
    assert len(ids) == stopped["usage"]["completion_tokens"]


def test_an_echoed_prompt_alone_has_none(server: ServerProcess) -> None:
    (choice,) = server.post(TEXT, prompt="hello", echo=True, max_tokens=0, return_token_ids=True).json()["choices"]
    assert (choice["text"], choice["token_ids"]) == ("hello", [])
    assert choice["prompt_token_ids"] == _prompt_ids(server, TEXT)


def test_a_chat_echoes_what_it_goes_on_with(server: ServerProcess) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "I say"}]
    body = {"messages": messages, "continue_final_message": True, "max_tokens": 4, "seed": 1}
    content = server.post(CHAT, **body).json()["choices"][0]["message"]["content"]
    assert server.post(CHAT, **body, echo=True).json()["choices"][0]["message"]["content"] == f"I say{content}"
    deltas = [chunk["choices"][0]["delta"] for chunk in _chunks(server, CHAT, **body, echo=True)]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content") or "" for delta in deltas) == f"I say{content}"
    answered = server.post(CHAT, messages=HELLO, echo=True, max_tokens=4, seed=1).json()
    assert answered["choices"] == server.post(CHAT, messages=HELLO, max_tokens=4, seed=1).json()["choices"]


def test_the_rendered_prompt(server: ServerProcess) -> None:
    template = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
    body = {"messages": HELLO, "chat_template": template, "max_tokens": 1, "return_prompt_text": True}
    assert server.post(CHAT, **body).json()["prompt_text"] == "<hello>"
    assert [chunk.get("prompt_text") for chunk in _chunks(server, CHAT, **body)][:2] == ["<hello>", None]


@pytest.mark.parametrize("path", BODIES)
def test_the_id_that_a_request_brings(server: ServerProcess, path: str) -> None:
    prefix = "chatcmpl-" if path == CHAT else "cmpl-"
    body = {**BODIES[path], "max_tokens": 1, "request_id": "mine/1"}
    response = httpx.post(server.url + path, json=body, headers={"x-request-id": "hop"})
    assert (response.json()["id"], response.headers["x-request-id"]) == (f"{prefix}mine/1", "hop")
    assert {chunk["id"] for chunk in _chunks(server, path, **body)} == {f"{prefix}mine/1"}
    for wrong in ("", "a b", "x" * 129, "a\nb"):
        refused = server.post(path, **{**body, "request_id": wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "request_id")


def test_the_side_that_is_cut_off(server: ServerProcess) -> None:
    whole = _prompt_ids(server, TEXT)
    body = {**BODIES[TEXT], "max_tokens": 1, "return_token_ids": True, "truncate_prompt_tokens": 2}
    kept = {
        side: server.post(TEXT, **body, truncation_side=side).json()["choices"][0]["prompt_token_ids"]
        for side in ("left", "right", None)
    }
    assert kept == {"left": whole[-2:], "right": whole[:2], None: whole[-2:]}


@pytest.mark.parametrize("path", BODIES)
def test_what_comes_before_the_first_token_counts_none(server: ServerProcess, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {
        **BODIES[path],
        "max_tokens": 5,
        "ignore_eos": True,
        "stream_options": options,
        "n": 2,
        "echo": path == TEXT,
    }
    chunks = _chunks(server, path, **body)
    for index in range(2):
        counts = [
            chunk["usage"]["completion_tokens"]
            for chunk in chunks
            if chunk["choices"] and chunk["choices"][0]["index"] == index
        ]
        assert counts[0] == 0
        assert counts == sorted(counts)
        assert counts[1] > 0
    assert chunks[-1]["usage"]["completion_tokens"] == 10
    assert chunks[0]["usage"]["total_tokens"] == chunks[0]["usage"]["prompt_tokens"] > 0


def test_a_first_token_is_counted_where_nothing_comes_before(server: ServerProcess) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = _chunks(server, TEXT, prompt="hello", max_tokens=3, ignore_eos=True, stream_options=options)
    assert chunks[0]["usage"]["completion_tokens"] > 0
