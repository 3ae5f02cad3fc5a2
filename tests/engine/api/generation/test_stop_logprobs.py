"""The token that ends a completion has log-probabilities, too: clients that score prompts cut the last token off."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engine_support.server_process import ServerProcess

PATH = "/v1/completions"
PROMPT = [40, 41, 42]
ENDS: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "stop_token_ids": list(range(97)), "logprobs": 1}
"""Whatever is sampled first ends it."""


def test_a_scored_prompt_is_followed_by_one_token_however_it_ends(server: ServerProcess) -> None:
    body = {**ENDS, "echo": True, "max_tokens": 1}
    (ended,) = server.post(PATH, **body).json()["choices"]
    (cut,) = server.post(PATH, **{**body, "stop_token_ids": [], "ignore_eos": True}).json()["choices"]
    assert (ended["finish_reason"], cut["finish_reason"]) == ("stop", "length")
    for choice in (ended, cut):
        assert {name: len(values) for name, values in choice["logprobs"].items()} == dict.fromkeys(
            choice["logprobs"], 4
        )
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert ended["logprobs"]["token_logprobs"] == cut["logprobs"]["token_logprobs"]
    assert ended["logprobs"]["text_offset"] == cut["logprobs"]["text_offset"]
    assert ended["logprobs"]["tokens"][-1] == ""


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_has_it_as_a_whole_response_has(server: ServerProcess, n: int) -> None:
    first = server.post(PATH, prompt=PROMPT, temperature=0, max_tokens=9, ignore_eos=True, return_token_ids=True).json()
    ids = first["choices"][0]["token_ids"]
    last = next(token for position, token in enumerate(ids) if position > 2 and token not in ids[:position])
    body = {**ENDS, "stop_token_ids": [last], "max_tokens": 9, "ignore_eos": True, "n": n}
    whole = server.post(PATH, **body).json()
    assert whole["choices"][0]["finish_reason"] == "stop"
    tokens: list[list[str]] = [[] for _ in range(n)]
    for line in server.post(PATH, **body, stream=True).text.splitlines():
        if line.startswith("data: {"):
            (choice,) = json.loads(line[6:])["choices"]
            tokens[choice["index"]] += choice["logprobs"]["tokens"]
    assert tokens == [choice["logprobs"]["tokens"] for choice in whole["choices"]]
    assert sum(map(len, tokens)) == whole["usage"]["completion_tokens"]


def test_it_is_named_where_tokens_go_by_id_and_shown_where_it_is_part_of_the_text(server: ServerProcess) -> None:
    (named,) = server.post(PATH, **ENDS, return_tokens_as_token_ids=True, return_token_ids=True).json()["choices"]
    assert named["logprobs"]["tokens"] == [f"token_id:{named['token_ids'][-1]}"]
    (shown,) = server.post(PATH, **ENDS, include_stop_str_in_output=True).json()["choices"]
    assert shown["text"] == "".join(shown["logprobs"]["tokens"]) != ""


def test_a_chat_has_those_of_its_text_only(server: ServerProcess) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "stop_token_ids": list(range(97))}
    (choice,) = server.post("/v1/chat/completions", **body, logprobs=True).json()["choices"]
    assert (choice["logprobs"]["content"], choice["finish_reason"]) == ([], "stop")
