"""Every field of a chat through the official client, sync and async, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support.openai_calls import Way, chat, each_way
from engine_support.server_process import ServerProcess

WHOLE = Way(False, False)
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@each_way
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_number_of_tokens(server: ServerProcess, way: Way, name: str) -> None:
    reply = chat(server, way, **{**GREEDY, "max_tokens": None, name: 5})
    assert reply.usage.completion_tokens == 5
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 5
    assert reply.output.finish_reason == "length"


@each_way
def test_all_ways_say_the_same(server: ServerProcess, way: Way) -> None:
    assert chat(server, way, **GREEDY).text == chat(server, WHOLE, **GREEDY).text


@each_way
def test_seed_and_n(server: ServerProcess, way: Way) -> None:
    def texts(seed: int) -> list[str]:
        reply = chat(server, way, n=3, seed=seed, temperature=1, ignore_eos=True)
        return [output.text for output in reply.outputs]

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
    assert (reply.text, reply.output.finish_reason) == (before, "stop")
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
    assert "".join(token for token, _ in reply.output.tokens) == reply.text
    assert all(logprob <= 0 for _, logprob in reply.output.tokens)
    assert reply.output.top == [number or 0] * 6


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
def test_usage_of_a_stream_only_where_requested(server: ServerProcess, way: Way) -> None:
    reply = chat(server, way, stream_options=None)
    assert (reply.usage is None) == way.streaming


@each_way
def test_usage_on_every_chunk(server: ServerProcess, way: Way) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True} if way.streaming else None
    reply = chat(server, way, stream_options=options, **GREEDY)
    assert reply.usage.completion_tokens == 8
    counts = [chunk.usage.completion_tokens for chunk in reply.raw]
    assert counts == sorted(counts)
    assert (len(set(counts)) > 2) == way.streaming


@each_way
def test_beams(server: ServerProcess, way: Way) -> None:
    reply = chat(server, way, use_beam_search=True, beam_width=3, n=2, length_penalty=0.5, early_stopping=True)
    assert len({output.text for output in reply.outputs}) == 2


def test_best_of(server: ServerProcess) -> None:
    assert len(chat(server, WHOLE, best_of=4, n=2, temperature=1, seed=1).outputs) == 2


def test_prompt_logprobs(server: ServerProcess) -> None:
    reply = chat(server, WHOLE, prompt_logprobs=1)
    (found,) = [chunk.prompt_logprobs for chunk in reply.raw]
    assert len(found) == reply.usage.prompt_tokens
    assert found[0] is None
    assert all(entry["logprob"] <= 0 for entries in found[1:] for entry in entries.values())


@each_way
def test_tokens_by_their_ids(server: ServerProcess, way: Way) -> None:
    reply = chat(server, way, logprobs=True, return_tokens_as_token_ids=True, **GREEDY)
    assert all(token.startswith("token_id:") for token, _ in reply.output.tokens)


@each_way
def test_a_message_that_goes_on(server: ServerProcess, way: Way) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "well"}]
    whole = chat(server, way, messages=messages, continue_final_message=True, **GREEDY)
    assert whole.text == chat(server, way, resume_response="well", **GREEDY).text
    assert whole.text != chat(server, way, **GREEDY).text


@each_way
def test_a_template_of_the_request(server: ServerProcess, way: Way) -> None:
    reply = chat(server, way, chat_template="{{ messages[0].content }}{{ mark }}", chat_template_kwargs={"mark": "!"})
    plain = chat(server, way, chat_template="hello!")
    assert reply.usage.prompt_tokens == plain.usage.prompt_tokens
    assert chat(server, way, truncate_prompt_tokens=2).usage.prompt_tokens == 2


@each_way
@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 0.1, "logit_bias": {"5": 10, "6": -100}},
        {"temperature": 2.0, "top_p": 0.5},
        {"top_k": 3},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": -0.5},
        {"priority": 3},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"reasoning_effort": "low", "verbosity": "low"},
        {"safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
        {"prediction": {"type": "content", "content": "what it may say"}},
        {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": False},
        {"response_format": {"type": "text"}, "modalities": ["text"], "logit_bias": {}, "tools": []},
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
    assert reply.output.finish_reason in ("stop", "length")
