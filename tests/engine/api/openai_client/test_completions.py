"""Every field of a completion through the official client, sync and async, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support.openai_calls import Way, completion, each_way
from engine_support.server_process import ServerProcess

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@each_way
def test_prompts_of_every_form(server: ServerProcess, way: Way) -> None:
    def texts(prompt: Any) -> list[str]:
        return [output.text for output in completion(server, way, prompt=prompt, **GREEDY).outputs]

    (hello,) = texts("hello")
    (ids,) = texts([40, 41, 42])
    assert texts(["hello", "hello"]) == [hello, hello]
    assert texts([[40, 41, 42], [40, 41, 42]]) == [ids, ids]
    assert hello != ids


@each_way
def test_sixteen_tokens_by_default(server: ServerProcess, way: Way) -> None:
    assert completion(server, way, max_tokens=None, **GREEDY).usage.completion_tokens == 16
    assert completion(server, way, max_tokens=3, **GREEDY).usage.completion_tokens == 3


@each_way
def test_n_for_each_prompt(server: ServerProcess, way: Way) -> None:
    def texts() -> list[str]:
        reply = completion(server, way, prompt=["a", "b"], n=2, seed=7, ignore_eos=True)
        return [output.text for output in reply.outputs]

    first = texts()
    assert len(set(first)) == 4
    assert texts() == first


@each_way
def test_echo(server: ServerProcess, way: Way) -> None:
    plain = completion(server, way, **GREEDY).text
    assert completion(server, way, echo=True, **GREEDY).text == "hello" + plain
    reply = completion(server, way, prompt=["a", "b"], n=2, echo=True, **GREEDY)
    assert [output.text[0] for output in reply.outputs] == ["a", "a", "b", "b"]


@each_way
def test_echo_with_logprobs(server: ServerProcess, way: Way) -> None:
    reply = completion(server, way, prompt=[40, 41, 42], echo=True, logprobs=2, max_tokens=3, **GREEDY)
    assert len(reply.output.tokens) == 6
    assert reply.output.tokens[0][1] is None
    assert "".join(token for token, _ in reply.output.tokens) == reply.text
    alone = completion(server, way, prompt=[40, 41, 42], echo=True, max_tokens=0)
    assert reply.text.startswith(alone.text)
    assert alone.usage.completion_tokens == 0


def test_best_of(server: ServerProcess) -> None:
    reply = completion(server, Way(False, False), prompt=["a", "b"], best_of=3, temperature=1, seed=1)
    assert len(reply.outputs) == 2


def test_prompt_logprobs(server: ServerProcess) -> None:
    reply = completion(server, Way(False, False), prompt=[40, 41, 42], prompt_logprobs=0)
    (found,) = [choice.prompt_logprobs for choice in reply.raw[0].choices]
    assert [entries and list(entries) for entries in found] == [None, ["41"], ["42"]]


@each_way
@pytest.mark.parametrize("number", [1, 4])
def test_logprobs(server: ServerProcess, way: Way, number: int) -> None:
    reply = completion(server, way, logprobs=number, **GREEDY)
    assert "".join(token for token, _ in reply.output.tokens) == reply.text
    assert set(reply.output.top) <= {number, number + 1}  # the chosen token is always among them


@each_way
def test_stop(server: ServerProcess, way: Way) -> None:
    whole = completion(server, way, max_tokens=30, **GREEDY).text
    stop = whole[9:12]
    reply = completion(server, way, max_tokens=30, stop=[stop], **GREEDY)
    assert (reply.text, reply.output.finish_reason) == (whole[: whole.index(stop)], "stop")


@each_way
def test_usage(server: ServerProcess, way: Way) -> None:
    usage = completion(server, way, prompt=[40] * 40, n=2, **GREEDY).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (40, 16, 56)


@each_way
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.5, "top_p": 0.5, "top_k": 5},
        {"presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.1},
        {"best_of": 1, "suffix": "", "logit_bias": {}, "user": "u"},
        {"min_tokens": 2, "stop_token_ids": [5], "skip_special_tokens": False},
        {"min_p": 0.2, "logit_bias": {"5": 1}, "add_special_tokens": False, "truncate_prompt_tokens": 1},
        {"priority": -1, "cache_salt": "s"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_accepted(server: ServerProcess, way: Way, fields: dict[str, Any]) -> None:
    assert completion(server, way, **fields).output.finish_reason in ("stop", "length")
