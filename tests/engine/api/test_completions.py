"""``/v1/completions`` through the official client, on a real server process."""

from __future__ import annotations

from typing import Any

import openai
from engine_support.fake_runner import tokens_alone
from engine_support.server_process import ServerProcess

from blade_llm.sampling.parameters import SamplingParams


def _complete(server: ServerProcess, prompt: Any, **options: Any) -> openai.types.Completion:
    options = {"temperature": 0, "extra_body": {"ignore_eos": True}, **options}
    return server.client.completions.create(model="tiny-chat", prompt=prompt, **options)  # type: ignore[no-any-return]


def test_sixteen_tokens_by_default(server: ServerProcess) -> None:
    completion = _complete(server, "hello")
    assert completion.object == "text_completion"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 16


def test_token_ids_and_lists_of_prompts(server: ServerProcess) -> None:
    ids = [[40, 41, 42], [50, 51]]
    one = _complete(server, ids[0], logprobs=0, max_tokens=5).choices[0]
    both = _complete(server, ids, n=2, max_tokens=5, temperature=1, seed=9)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert both.usage is not None
    assert both.usage.prompt_tokens == 5
    assert both.usage.completion_tokens == 20
    expected, _, _ = tokens_alone(ids[0], SamplingParams(max_tokens=5, temperature=0), vocab_size=97)
    assert one.logprobs is not None
    assert len(one.logprobs.tokens or []) == len(expected)
    texts = _complete(server, ["hello", "world"], max_tokens=3)
    assert [_complete(server, p, max_tokens=3).choices[0].text for p in ("hello", "world")] == [
        choice.text for choice in texts.choices
    ]


def test_the_stream_joins_to_the_whole_response(server: ServerProcess) -> None:
    whole = _complete(server, ["hello", "world"], max_tokens=20)
    texts = ["", ""]
    stream = server.client.completions.create(
        model="tiny-chat",
        prompt=["hello", "world"],
        max_tokens=20,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_logprobs_have_offsets_into_the_text(server: ServerProcess) -> None:
    choice = _complete(server, "hello", logprobs=3, max_tokens=6).choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert logprobs.top_logprobs is not None
    for token, offset, top in zip(logprobs.tokens, logprobs.text_offset, logprobs.top_logprobs, strict=True):
        assert choice.text[offset:].startswith(token)
        assert token in top


def test_end_of_sequence_ends_and_counts(server: ServerProcess) -> None:
    """The fake model samples from 97 ids, so it meets its end of sequence (id 2) sooner or later."""
    prompt, params = [40, 41, 42], SamplingParams(max_tokens=1500, temperature=0)
    expected, reason, stop_id = tokens_alone(prompt, params, vocab_size=97, eos_token_ids=(2,))
    assert (reason, stop_id) == ("stop", 2)
    completion = _complete(server, prompt, max_tokens=1500, extra_body={})
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == len(expected) + 1


def test_echo_puts_the_prompt_first(server: ServerProcess) -> None:
    plain, echoed = (_complete(server, "hello", echo=echo).choices[0].text for echo in (False, True))
    assert echoed == "hello" + plain
    stream = server.client.completions.create(
        model="tiny-chat", prompt="hello", echo=True, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == echoed


def test_a_large_echo_with_logprobs_is_not_streamed(server: ServerProcess) -> None:
    fields: dict[str, Any] = {"prompt": [40] * 2000, "echo": True, "logprobs": 1, "max_tokens": 0, "n": 13}
    response = server.post("/v1/completions", **fields, stream=True)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream"
    cut = server.post("/v1/completions", **fields, stream=True, truncate_prompt_tokens=9)
    assert cut.status_code == 200
    for choice in server.post("/v1/completions", **fields).json()["choices"]:
        assert len(choice["logprobs"]["tokens"]) == 2000


def test_stop_token_ids_and_min_tokens(server: ServerProcess) -> None:
    params = SamplingParams(max_tokens=9, temperature=0)
    free, _, _ = tokens_alone([40, 41], params, vocab_size=97)
    extra = {"ignore_eos": True, "stop_token_ids": [free[4]]}
    completion = _complete(server, [40, 41], max_tokens=9, extra_body=extra)
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == free.index(free[4]) + 1
    longer = _complete(server, [40, 41], max_tokens=9, extra_body={**extra, "min_tokens": 9})
    assert longer.usage is not None
    assert longer.usage.completion_tokens == 9
