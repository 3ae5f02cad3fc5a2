"""Every field of a chat through the official client, sync and async, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support.openai_calls import Way, chat, each_way
from engine_support.server_process import ServerProcess

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@each_way
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_number_of_tokens(server: ServerProcess, way: Way, name: str) -> None:
    reply = chat(server, way, **{**GREEDY, "max_tokens": None, name: 5})
    assert reply.usage.completion_tokens == 5
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 5
    assert reply.answer.finish_reason == "length"


@each_way
def test_all_ways_say_the_same(server: ServerProcess, way: Way) -> None:
    assert chat(server, way, **GREEDY).text == chat(server, Way(False, False), **GREEDY).text


@each_way
def test_seed_and_n(server: ServerProcess, way: Way) -> None:
    def texts(seed: int) -> list[str]:
        reply = chat(server, way, n=3, seed=seed, temperature=1, ignore_eos=True)
        return [answer.text for answer in reply.answers]

    first = texts(5)
    assert len(set(first)) == 3
    assert texts(5) == first
    assert texts(6) != first


@each_way
@pytest.mark.parametrize("as_list", [False, True])
def test_stop(server: ServerProcess, way: Way, as_list: bool) -> None:
    whole = chat(server, way, max_tokens=30, **GREEDY).text
    stop = whole[9:12]
    before = whole[: whole.index(stop)]
    given = ["never said", stop] if as_list else stop
    reply = chat(server, way, max_tokens=30, stop=given, **GREEDY)
    assert (reply.text, reply.answer.finish_reason) == (before, "stop")
    with_stop = chat(server, way, max_tokens=30, stop=given, include_stop_str_in_output=True, **GREEDY)
    assert with_stop.text == before + stop


@each_way
def test_stop_token_ids_and_min_tokens(server: ServerProcess, way: Way) -> None:
    stops = list(range(3, 97))  # of the fake model's 97 tokens
    assert chat(server, way, stop_token_ids=stops, **GREEDY).usage.completion_tokens <= 3
    reply = chat(server, way, stop_token_ids=stops, min_tokens=6, **GREEDY)
    assert reply.usage.completion_tokens >= 6


@each_way
def test_ignore_eos(server: ServerProcess, way: Way) -> None:
    lengths = [
        chat(server, way, max_tokens=300, temperature=1, seed=3, ignore_eos=ignored).usage.completion_tokens
        for ignored in (False, True)
    ]
    assert lengths[0] < lengths[1] == 300


@each_way
@pytest.mark.parametrize("number", [None, 0, 3, 20])
def test_logprobs(server: ServerProcess, way: Way, number: int | None) -> None:
    reply = chat(server, way, logprobs=True, top_logprobs=number, max_tokens=6, **GREEDY)
    assert "".join(token for token, _ in reply.answer.tokens) == reply.text
    assert all(logprob <= 0 for _, logprob in reply.answer.tokens)
    assert reply.answer.top == [number or 0] * 6


@each_way
def test_skip_special_tokens(server: ServerProcess, way: Way) -> None:
    texts = [
        chat(server, way, max_tokens=300, seed=3, ignore_eos=True, skip_special_tokens=skip).text
        for skip in (True, False)
    ]
    assert "<|im_" not in texts[0]
    assert "<|im_" in texts[1]


@each_way
def test_cached_tokens_and_cache_salt(server: ServerProcess, way: Way) -> None:
    messages = [{"role": "user", "content": f"a question of {way} " * 20}]

    def cached(salt: str) -> int:
        usage = chat(server, way, messages=messages, cache_salt=salt, max_tokens=1).usage
        number: int = usage.prompt_tokens_details.cached_tokens
        return number

    assert cached(f"one {way}") == 0
    assert cached(f"one {way}") > 100
    assert cached(f"two {way}") == 0


@each_way
def test_usage_of_a_stream_only_where_asked_for(server: ServerProcess, way: Way) -> None:
    reply = chat(server, way, stream_options=None)
    assert (reply.usage is None) == way.streaming


@each_way
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 2.0, "top_p": 0.5},
        {"top_k": 3},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": -0.5},
        {"priority": 3},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"reasoning_effort": "low", "verbosity": "low"},
        {"safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
        {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": False},
        {"response_format": {"type": "text"}, "modalities": ["text"], "logit_bias": {}},
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "t"}]},
            ]
        },
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_accepted(server: ServerProcess, way: Way, fields: dict[str, Any]) -> None:
    reply = chat(server, way, **fields)
    assert reply.answer.finish_reason in ("stop", "length")
