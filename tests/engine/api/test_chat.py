"""``/v1/chat/completions`` through the official client, on a real server process."""

from __future__ import annotations

import httpx
import msgspec
import openai
import pytest
from engine_support.server_process import ServerProcess

HELLO: list[dict[str, str]] = [{"role": "user", "content": "hello"}]


def _chat(server: ServerProcess, **options: object) -> openai.types.chat.ChatCompletion:
    fields = {"model": "tiny-chat", "messages": HELLO, "max_tokens": 8, "temperature": 0, **options}
    return server.client.chat.completions.create(**fields)  # type: ignore[call-overload,no-any-return]


def test_a_whole_response(server: ServerProcess) -> None:
    completion = _chat(server, extra_body={"ignore_eos": True})
    assert completion.object == "chat.completion"
    assert completion.id.startswith("chatcmpl-")
    assert completion.model == "tiny-chat"
    (choice,) = completion.choices
    assert choice.finish_reason == "length"
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 8
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + 8


def test_the_stream_joins_to_the_whole_response(server: ServerProcess) -> None:
    extra = {"ignore_eos": True}
    whole = _chat(server, max_tokens=40, extra_body=extra).choices[0].message.content
    chunks = list(
        server.client.chat.completions.create(
            model="tiny-chat",
            messages=HELLO,  # type: ignore[arg-type]
            max_tokens=40,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=extra,
        )
    )
    *texts, usage = chunks
    assert texts[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in texts) == whole
    assert [chunk.choices[0].finish_reason for chunk in texts] == [None] * (len(texts) - 1) + ["length"]
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 40
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_bytes_of_a_stream(server: ServerProcess) -> None:
    body = {"messages": HELLO, "max_tokens": 3, "stream": "true", "ignore_eos": "true"}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers={"x-request-id": "abc-1"})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-request-id"] == "abc-1"
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    for event in events:
        chunk = msgspec.json.decode(event.removeprefix("data: "))
        assert chunk["object"] == "chat.completion.chunk"
        assert chunk["id"] == "chatcmpl-abc-1"


def test_several_samples(server: ServerProcess) -> None:
    completion = _chat(server, n=3, temperature=1, seed=5, extra_body={"ignore_eos": True})
    texts = [choice.message.content for choice in completion.choices]
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    again = _chat(server, n=3, temperature=1, seed=5, extra_body={"ignore_eos": True})
    assert [choice.message.content for choice in again.choices] == texts
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 24


def test_logprobs(server: ServerProcess) -> None:
    completion = _chat(server, logprobs=True, top_logprobs=2, max_tokens=4, extra_body={"ignore_eos": True})
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 4
    for entry in logprobs.content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 2
        assert bytes(entry.bytes or []).decode("utf-8", "replace") == entry.token
    assert "".join(entry.token for entry in logprobs.content) == completion.choices[0].message.content


def test_a_stop_string_ends_the_output_and_never_leaks(server: ServerProcess) -> None:
    text = _chat(server, max_tokens=30, extra_body={"ignore_eos": True}).choices[0].message.content
    assert text is not None
    stop = text[10:13]
    expected = text[: text.index(stop)]
    stopped = _chat(server, max_tokens=30, stop=stop, extra_body={"ignore_eos": True})
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == expected
    assert stopped.usage is not None
    assert stopped.usage.completion_tokens < 30
    stream = server.client.chat.completions.create(
        model="tiny-chat",
        messages=HELLO,  # type: ignore[arg-type]
        max_tokens=30,
        temperature=0,
        stop=[stop],
        stream=True,
        extra_body={"ignore_eos": True},
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == expected
    assert server.wait_idle()["kv_blocks_free"] == server.state()["kv_blocks_total"]


def test_max_completion_tokens_and_the_rest_of_the_context(server: ServerProcess) -> None:
    completion = _chat(server, max_completion_tokens=3, extra_body={"ignore_eos": True})
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 3
    prompt = completion.usage.prompt_tokens
    left = 2048 - prompt
    message = server.post("/v1/chat/completions", messages=HELLO, max_tokens=left + 1).json()["error"]["message"]
    assert str(prompt) in message
    assert "2048" in message


def test_content_parts_are_joined(server: ServerProcess) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    split = _chat(server, messages=[{"role": "user", "content": parts}])
    joined = _chat(server, messages=[{"role": "user", "content": "hel\nlo"}])
    assert split.choices[0].message == joined.choices[0].message


def test_a_repeated_prompt_reports_cached_tokens(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "a long and unique question " * 20}]
    first, second = (_chat(server, messages=messages, max_tokens=2) for _ in range(2))
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert second.usage.prompt_tokens - cached <= 16


@pytest.mark.parametrize("field", ["user", "metadata", "store", "service_tier"])
def test_bookkeeping_fields_are_ignored(server: ServerProcess, field: str) -> None:
    assert server.post("/v1/chat/completions", messages=HELLO, max_tokens=1, **{field: {}}).status_code == 200
