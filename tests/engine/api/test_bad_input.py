"""Bad requests get an OpenAI-shaped error that says what to change; nothing else is disturbed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from engine_support.server_process import ServerProcess, running_server

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def _error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("path", "fields", "param", "says"),
    [
        (CHAT, {"messages": HELLO, "temperature": -1}, "temperature", ">= 0"),
        (CHAT, {"messages": HELLO, "max_tokens": 0}, "max_tokens", "at least 1"),
        (CHAT, {"messages": HELLO, "max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
        (
            CHAT,
            {"messages": HELLO, "max_completion_tokens": 5000},
            "max_completion_tokens",
            "max_completion_tokens asks",
        ),
        (CHAT, {"messages": HELLO, "max_tokens": 5000}, "max_tokens", "max_tokens asks"),
        (TEXT, {"prompt": "hello", "best_of": 100, "use_beam_search": True}, "best_of", "best_of must"),
        (TEXT, {"prompt": "hello", "n": 100, "use_beam_search": True}, "n", "n must"),
        (TEXT, {"prompt": "hello", "beam_width": 100}, "beam_width", "beam_width must"),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 5000}, "max_output_tokens", "max_output_tokens asks"),
        (TEXT, {"prompt": "hello", "temperature": 1e39}, "temperature", "1000000"),
        (TEXT, {"prompt": "hello", "repetition_penalty": 1e-300}, "repetition_penalty", ">= 1e-06"),
        (TEXT, {"prompt": "hello", "length_penalty": 400, "beam_width": 2}, "length_penalty", "10"),
        (CHAT, {"messages": HELLO, "max_completion_tokens": -3}, "max_completion_tokens", ">= 0"),
        (CHAT, {"messages": HELLO, "top_p": -0.1}, "top_p", ">= 0"),
        (CHAT, {"messages": HELLO, "temperature": "hot"}, "temperature", "float"),
        (CHAT, {"messages": HELLO, "temperature": True}, "temperature", "float"),
        (CHAT, {"messages": HELLO, "stream": "perhaps"}, "stream", "bool"),
        (CHAT, {"messages": HELLO, "n": 0}, "n", ">= 1"),
        (CHAT, {"messages": HELLO, "n": 10**30}, "n", "<= 128"),
        (CHAT, {"messages": HELLO, "top_logprobs": 3}, "top_logprobs", "logprobs"),
        (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        (CHAT, {"messages": HELLO, "stop": ["a", 1]}, "stop", "str"),
        (CHAT, {"messages": HELLO, "stop": ["a"] * 10_000}, "stop", "16"),
        (CHAT, {"messages": HELLO, "stop": "a" * 10_000}, "stop", "1024"),
        (CHAT, {"messages": HELLO, "stop_token_ids": [384]}, "stop_token_ids", "383"),
        (CHAT, {"messages": HELLO, "stop_token_ids": [3] * 10_000}, "stop_token_ids", "128"),
        (CHAT, {"messages": HELLO, "seed": 2**70}, "seed", ""),
        (CHAT, {"messages": HELLO, "top_k": 2**63}, "top_k", "2^31"),
        (CHAT, {"messages": HELLO, "priority": 2**70}, "priority", "2147483647"),
        (CHAT, {"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        (CHAT, {"messages": HELLO, "presence_penalty": 3}, "presence_penalty", "2"),
        (CHAT, {"messages": HELLO, "logit_bias": {"384": 1}}, "logit_bias", "383"),
        (CHAT, {"messages": HELLO, "logit_bias": {"5": 101}}, "logit_bias", "100.0 (of the key '5')"),
        (CHAT, {"messages": HELLO, "logit_bias": {"-5": 1}}, "logit_bias", "not negative, not -5: 1"),
        (CHAT, {"messages": HELLO, "logit_bias": {"x": 1}}, "logit_bias", "int"),
        (CHAT, {"messages": HELLO, "logit_bias": {"1": 1, "xy": 1}}, "logit_bias", "(of the key 'xy')"),
        (CHAT, {"messages": HELLO, "logit_bias": {"1": 1, "23": "much"}}, "logit_bias", "(of the key '23')"),
        (CHAT, {"messages": HELLO, "logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "1024"),
        (CHAT, {"messages": HELLO, "bad_words": [""]}, "bad_words", "length >= 1"),
        (CHAT, {"messages": HELLO, "bad_words": ["x"] * 129}, "bad_words", "128"),
        (CHAT, {"messages": HELLO, "bad_words": ["x" * 250] * 40}, "bad_words", "8192 together"),
        (
            CHAT,
            {"messages": HELLO, "bad_words": [f"{i}" + "xyzw" * 60 for i in range(30)]},
            "bad_words",
            "1,024 tokens",
        ),
        (CHAT, {"messages": HELLO, "bad_words": ["x"], "beam_width": 2}, "bad_words", "beam search"),
        (CHAT, {"messages": HELLO, "allowed_token_ids": []}, "allowed_token_ids", "length >= 1"),
        (CHAT, {"messages": HELLO, "allowed_token_ids": [3, 384]}, "allowed_token_ids", "383"),
        (TEXT, {"prompt": "hello", "allowed_token_ids": [-1]}, "allowed_token_ids", ">= 0"),
        (TEXT, {"prompt": ["a"] * 17, "allowed_token_ids": [3] * 16_384}, "allowed_token_ids", "fewer prompts"),
        (CHAT, {"messages": HELLO, "logits_processors": ["x"]}, "logits_processors", "logit_bias"),
        (CHAT, {"messages": HELLO, "suffix": "x"}, "suffix", "/v1/completions"),
        (CHAT, {"messages": HELLO, "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream"),
        (CHAT, {}, "messages", "required"),
        (CHAT, {"messages": []}, "messages", "length >= 1"),
        (CHAT, {"messages": "hello"}, "messages", "array"),
        (CHAT, {"messages": [{}]}, "messages", "role"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages", "role"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages", "content"),
        (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages", "system, developer, user, assistant or"),
        (CHAT, {"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages", "role tool"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]}, "messages", "text"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "image_url"),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "hello " * 3000}]}, "messages", "2048"),
        (TEXT, {"prompt": "hello", "max_tokens": 5000}, "max_tokens", "2048"),
        (TEXT, {"prompt": "hello hello", "max_tokens": 2047}, "prompt", "2048"),
        (TEXT, {"prompt": ""}, "prompt", "empty"),
        (TEXT, {"prompt": []}, "prompt", "empty"),
        (TEXT, {"prompt": [[]]}, "prompt", "empty"),
        (TEXT, {"prompt": ["x"] * 1025}, "prompt", "at most 1024 in"),
        (TEXT, {"prompt": ["x"] * 9, "n": 128}, "prompt", "at most 8 with n 128"),
        (TEXT, {"prompt": [5, "x"]}, "prompt", "token ids"),
        (TEXT, {"prompt": [5, True]}, "prompt", "token ids"),
        (TEXT, {"prompt": [5, 384]}, "prompt", "384"),
        (TEXT, {"prompt": [5, 10**30]}, "prompt", "383"),
        (TEXT, {"prompt": {"a": 1}}, "prompt", ""),
        (TEXT, {"prompt": "hello", "best_of": 3, "n": 4}, "best_of", "at least n"),
        (TEXT, {"prompt": "hello", "best_of": 3, "stream": True}, "best_of", "streamed"),
        (TEXT, {"prompt": "hello", "length_penalty": 2}, "length_penalty", "use_beam_search"),
        (TEXT, {"prompt": "hello", "early_stopping": True}, "early_stopping", "use_beam_search"),
        (TEXT, {"prompt": "hello", "beam_width": 2, "use_beam_search": False}, "beam_width", "use_beam_search"),
        (TEXT, {"prompt": "hello", "beam_width": 2, "n": 3}, "n", "which is 2"),
        (TEXT, {"prompt": "hello", "beam_width": 2, "best_of": 3}, "best_of", "both"),
        (TEXT, {"prompt": "hello", "beam_width": 2, "temperature": 0.5}, "temperature", "draws nothing"),
        (TEXT, {"prompt": "hello", "beam_width": 2, "top_k": 4}, "top_k", "draws nothing"),
        (TEXT, {"prompt": "hello", "suffix": "end"}, "suffix", "cannot fill in"),
        (TEXT, {"prompt": "hello", "max_tokens": -1}, "max_tokens", ">= 0"),
        (TEXT, {"prompt": "hello", "min_p": 1.5}, "min_p", "1"),
        (TEXT, {"prompt": "hello", "min_tokens": 30}, "min_tokens", "max_tokens"),
        (TEXT, {"prompt": "hello", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream"),
        (TEXT, {"prompt": "hello", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        (TEXT, {"prompt": "hello", "continue_final_message": True}, "continue_final_message", "chat"),
        (TEXT, {"prompt": "hello", "logprobs": 21}, "logprobs", "20"),
    ],
)
def test_a_bad_value_is_named(server: ServerProcess, path: str, fields: dict[str, Any], param: str, says: str) -> None:
    error = _error(server.post(path, **fields), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"response_format": {"type": "text"}},
        {"best_of": 1},
        {"min_p": 0.0, "length_penalty": 1.0, "use_beam_search": False},
        {"echo": False, "modalities": ["text"]},
        {"stop": None},
    ],
)
def test_fields_that_request_nothing_pass(server: ServerProcess, fields: dict[str, Any]) -> None:
    assert server.post(CHAT, messages=HELLO, max_tokens=1, **fields).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hello " * 3000}]}),
        (CHAT, {"messages": HELLO * 3000}),
        (CHAT, {"messages": HELLO, "max_tokens": 5000}),
        (TEXT, {"prompt": [5] * 2048}),
        (TEXT, {"prompt": "x" * 200_000}),
        (TEXT, {"prompt": [5] * 30_000}),
        (TEXT, {"prompt": [5] * 1000, "max_tokens": 1049}),
        ("/v1/responses", {"input": "hello " * 3000}),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 5000}),
        ("/v1/embeddings", {"input": [5] * 2049}),
        ("/v1/embeddings", {"input": "x" * 200_000}),
    ],
)
def test_what_does_not_fit_says_so_as_openai_does(server: ServerProcess, path: str, fields: dict[str, Any]) -> None:
    error = _error(server.post(path, **fields), 400)
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
    assert error["message"].startswith("This model's maximum context length is 2048 tokens. However, you")


def test_both_numbers_of_a_prompt_that_is_too_long(server: ServerProcess) -> None:
    error = _error(server.post(TEXT, prompt=[5] * 2048), 400)
    assert error["code"] == "context_length_exceeded"
    assert "2048 tokens" in error["message"]
    assert "at most 2047" in error["message"]


def test_unknown_model(server: ServerProcess) -> None:
    error = _error(server.post(CHAT, messages=HELLO, model="gpt-5"), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("The model `gpt-5` does not exist")
    assert "tiny-chat" in error["message"]
    with pytest.raises(openai.NotFoundError):
        server.client.models.retrieve("gpt-5")


@pytest.mark.parametrize("body", [b"{", b"", b"[1]", b'{"a": \xff}', b"[" * 100_000, b'{"prompt": "\\ud800"}'])
def test_malformed_json(server: ServerProcess, body: bytes) -> None:
    _error(httpx.post(server.url + TEXT, content=body, headers={"content-type": "application/json"}), 400)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"prompt": "x", "temperature": NaN}', "temperature"),
        (b'{"prompt": "x", "temperature": -Infinity}', "temperature"),
        (b'{"prompt": "x", "temperature": 1e999}', "temperature"),
        (b'{"prompt": "x", "logit_bias": {"5": NaN}}', "logit_bias"),
        (b'{"prompt": "\\ud800"}', "prompt"),
        (b'{"prompt": "x", "stop": ["a", "\\udc00"]}', "stop"),
        (b'{"prompt": ["a", "\\ud800\\ud800"]}', "prompt"),
        (b'{"prompt": "x", "cache_salt": "\\u0000"}', "cache_salt"),
        (b'{"prompt": "x", "temperature": 0, "temperature": 1}', "temperature"),
        (b'{"prompt": "x", "max_tokens": 123456789012345678901234567890}', "max_tokens"),
    ],
)
@pytest.mark.parametrize("stream", [b"", b', "stream": true'])
def test_what_is_no_json_is_named(server: ServerProcess, body: bytes, param: str, stream: bytes) -> None:
    body = body[:-1] + stream + b"}"
    response = httpx.post(server.url + TEXT, content=body, headers={"content-type": "application/json"})
    assert _error(response, 400)["param"] == param


def test_texts_that_only_look_suspicious(server: ServerProcess) -> None:
    prompt = '\\u0000 "prompt" and "prompt": "prompt"'
    assert server.post(TEXT, prompt=prompt, max_tokens=1).status_code == 200
    nested = {"role": "user", "content": "x", "messages": [{"messages": 1}]}
    assert server.post(CHAT, messages=[nested], max_tokens=1).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_more_than_the_kv_cache_holds(tmp_path: Path, text_model: Path, stream: bool) -> None:
    """Samples of one prompt wait for each other where they do not fit together; what never fits is refused."""
    with running_server(tmp_path, text_model, "--max_num_seqs", "8", "--max_kv_blocks", "40") as server:
        error = _error(server.post(TEXT, prompt=[5] * 600, max_tokens=100, n=8, stream=stream), 400)
        assert error["param"] == "prompt"
        assert "640" in error["message"]
        fits = server.post(TEXT, prompt=[5] * 600, max_tokens=20, n=8, stream=stream)
        assert fits.status_code == 200


@pytest.mark.parametrize("depth", [300, 900, 5000])
@pytest.mark.parametrize("inside", ["1", '"\\u0000"', "1.5", '{"prompt": 1, "prompt": 2}', "NaN"])
@pytest.mark.parametrize("field", ["prompt", "messages", "chat_template_kwargs"])
def test_deep_values(server: ServerProcess, depth: int, inside: str, field: str) -> None:
    """Wherever the depth is noticed, it is the request's fault."""
    value = "[" * depth + inside + "]" * depth
    bodies = {
        "prompt": f'{{"prompt": {value}, "max_tokens": 1.5}}',
        "messages": f'{{"messages": [{{"role": "user", "content": "x", "more": {value}}}], "max_tokens": 1.0}}',
        "chat_template_kwargs": (
            f'{{"messages": [{{"role": "user", "content": "x"}}], "chat_template_kwargs": {{"a": {value}}}, '
            f'"max_tokens": 1, "chat_template": "{{{{ a | tojson }}}}"}}'
        ),
    }
    path = TEXT if field == "prompt" else CHAT
    body = bodies[field].encode()
    response = httpx.post(server.url + path, content=body, headers={"content-type": "application/json"}, timeout=60)
    taken = field != "prompt" and inside != "NaN"
    assert response.status_code == 400 or (response.status_code == 200 and taken), response.text


def test_wrong_content_type(server: ServerProcess) -> None:
    body = json.dumps({"prompt": "x"}).encode()
    error = _error(httpx.post(server.url + TEXT, content=body, headers={"content-type": "text/plain"}), 415)
    assert "application/json" in error["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_20_megabytes(server: ServerProcess, chunked: bool) -> None:
    body = b'{"prompt": "' + b"x" * 20_000_000 + b'"}'

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(body), 1 << 20):
            yield body[start : start + (1 << 20)]

    response = httpx.post(
        server.url + TEXT, content=pieces() if chunked else body, headers={"content-type": "application/json"}
    )
    error = _error(response, 413)
    assert str(16 * 1024 * 1024) in error["message"]


def test_unknown_route_and_method(server: ServerProcess) -> None:
    assert "/v1/nothing" in _error(httpx.get(server.url + "/v1/nothing"), 404)["message"]
    response = httpx.get(server.url + CHAT)
    _error(response, 405)
    assert response.headers["allow"] == "POST"


def test_everyone_else_is_served_meanwhile(server: ServerProcess) -> None:
    alone = server.post(TEXT, prompt="hello", temperature=0, max_tokens=50, ignore_eos=True).json()["choices"]
    with httpx.stream(
        "POST",
        server.url + TEXT,
        json={"prompt": "hello", "temperature": 0, "max_tokens": 50, "ignore_eos": True, "stream": True},
    ) as stream:
        lines = stream.iter_lines()
        events = [next(lines)]
        for fields in ({"temperature": -1}, {"prompt": [999]}, {"max_tokens": -1}):
            _error(server.post(TEXT, **{"prompt": "x", **fields}), 400)
        events += [line for line in lines if line.startswith("data: {")]
    text = "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events)
    assert text == alone[0]["text"]
