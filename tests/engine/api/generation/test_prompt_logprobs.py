"""``echo``, ``prompt_logprobs`` and how log-probabilities name tokens. On a real server process with a fake engine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from engine_support.server_process import ServerProcess

TEXT = "/v1/completions"
PROMPT = [40, 41, 42, 43]
HELLO = [{"role": "user", "content": "hello"}]


def _choice(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    response = server.post(TEXT, **{"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "ignore_eos": True, **fields})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def _streamed(server: ServerProcess, **fields: Any) -> list[dict[str, Any]]:
    body = {"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "ignore_eos": True, "stream": True, **fields}
    lines = httpx.post(server.url + TEXT, json=body).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_echo_with_logprobs_covers_the_prompt(server: ServerProcess) -> None:
    plain, echoed = _choice(server, logprobs=2), _choice(server, logprobs=2, echo=True)
    prompt = _choice(server, echo=True, max_tokens=0)["text"]
    assert echoed["text"] == prompt + plain["text"]
    found = echoed["logprobs"]
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    assert found["token_logprobs"][1:4] == [-1.0] * 3
    assert found["tokens"][4:] == plain["logprobs"]["tokens"]
    assert found["token_logprobs"][4:] == plain["logprobs"]["token_logprobs"]
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert echoed["text"][offset:].startswith(token)


@pytest.mark.parametrize("stream", [False, True])
def test_echo_alone(server: ServerProcess, stream: bool) -> None:
    fields: dict[str, Any] = {"echo": True, "max_tokens": 0, "logprobs": 1, "n": 2}
    if stream:
        first, last, *others = _streamed(server, **fields)
        choice = {**first["choices"][0], "finish_reason": last["choices"][0]["finish_reason"]}
        assert {event["choices"][0]["index"] for event in others} == {1}
        assert last["choices"][0]["text"] == ""
    else:
        choice = _choice(server, **fields)
        usage = server.post(TEXT, prompt="hello", **fields).json()["usage"]
        assert usage["completion_tokens"] == 0
    assert choice["text"] == "FGHI"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -1.0, -1.0]
    server.wait_idle()


def test_prompt_logprobs_have_vllms_shape(server: ServerProcess) -> None:
    found = _choice(server, prompt_logprobs=1)["prompt_logprobs"]
    assert found[0] is None
    assert found[1] == {
        "41": {"logprob": -1.0, "rank": 2, "decoded_token": "G"},
        "42": {"logprob": -0.5, "rank": 1, "decoded_token": "H"},
    }
    both = _choice(server, prompt_logprobs=2, logprobs=1)["prompt_logprobs"]
    assert both[3]["43"]["rank"] == 2
    chat = server.post("/v1/chat/completions", messages=HELLO, max_tokens=1, prompt_logprobs=0).json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert len(chat["prompt_logprobs"][1]) == 1


def test_tokens_as_ids(server: ServerProcess) -> None:
    found = _choice(server, logprobs=1, echo=True, return_tokens_as_token_ids=True)["logprobs"]
    assert found["tokens"][:4] == [f"token_id:{token_id}" for token_id in PROMPT]
    assert "token_id:41" in found["top_logprobs"][1]
    chat = server.post(
        "/v1/chat/completions", messages=HELLO, max_tokens=1, logprobs=True, return_tokens_as_token_ids=True
    )
    assert chat.json()["choices"][0]["logprobs"]["content"][0]["token"].startswith("token_id:")


def test_usage_on_chunks(server: ServerProcess) -> None:
    *chunks, last = _streamed(server, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = _streamed(server, stream_options=options, max_tokens=20)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert 0 < counts[0] < 20
    assert chunks[-1]["usage"] == last["usage"]
    assert "usage" not in _streamed(server)[0]
