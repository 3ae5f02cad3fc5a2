"""Values that OpenAI's specification allows and few servers take: they are read as it means them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from engine_support.server_process import ServerProcess

from blade_llm.api.common.response_notes import noting
from blade_llm.api.common.served_model import SamplingDefaults
from blade_llm.api.generation.requests import CompletionRequest
from blade_llm.api.generation.sampling import sampling_params
from blade_llm.api.generation.search import search_of
from blade_llm.api.generation.structured_outputs import (
    ANY_OBJECT,
    JsonSchemaFormat,
    ResponseFormat,
    requested_structure,
)
from blade_llm.kernels.top_k_top_p import top_k_top_p_thresholds

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HELLO = [{"role": "user", "content": "hello"}]


def _text(server: ServerProcess, **fields: Any) -> str:
    response = server.post(TEXT, prompt="hello", max_tokens=8, ignore_eos=True, **fields)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def test_a_top_p_of_0_keeps_the_likeliest_token_alone(server: ServerProcess) -> None:
    request = CompletionRequest(prompt="x", top_p=0.0)
    defaults = SamplingDefaults(temperature=1.0, top_p=0.8)
    params = sampling_params(request, defaults, search_of(request), max_tokens=1, logprobs=None, vocab_size=100)
    logits = torch.randn(5, 1000, generator=torch.Generator().manual_seed(3))
    keep, share = torch.zeros(5, dtype=torch.int64), torch.full((5,), params.top_p)
    assert torch.equal(top_k_top_p_thresholds(logits, keep, share), logits.amax(1))
    response = server.post(RESPONSES, input="hello", top_p=0, max_output_tokens=16).json()
    assert response["top_p"] == 0


@pytest.mark.parametrize("stop", ["", [""], ["", "\x01\x02 never said"]])
def test_empty_stop_strings_stop_at_none(server: ServerProcess, stop: Any) -> None:
    assert _text(server, temperature=0, stop=stop) == _text(server, temperature=0)
    response = server.post(CHAT, messages=HELLO, max_tokens=1, stop=stop)
    assert response.headers["x-blade-ignored"] == "stop"


def test_a_best_of_0_is_none(server: ServerProcess) -> None:
    response = server.post(TEXT, prompt="hello", max_tokens=4, n=2, best_of=0)
    assert len(response.json()["choices"]) == 2
    beams = server.post(TEXT, prompt="hello", max_tokens=4, n=2, best_of=0, use_beam_search=True)
    assert len(beams.json()["choices"]) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_a_completion_of_no_tokens(server: ServerProcess, stream: bool, echo: bool) -> None:
    response = server.post(TEXT, prompt="hello", max_tokens=0, stream=stream, echo=echo)
    assert response.status_code == 200, response.text
    data = (
        [line[6:] for line in response.text.splitlines() if line.startswith("data: {")] if stream else [response.text]
    )
    choices = [json.loads(each)["choices"][0] for each in data]
    assert "".join(choice["text"] for choice in choices) == ("hello" if echo else "")
    assert choices[-1]["finish_reason"] == "length"
    if not stream:
        assert response.json()["usage"]["completion_tokens"] == 0


def test_null_bytes_outside_of_names_that_are_compared(server: ServerProcess) -> None:
    fields = {"user": "a\0b", "safety_identifier": "\0", "prompt_cache_key": "\0", "what\0ever": 1}
    response = server.post(TEXT, prompt="hello", max_tokens=1, **fields)
    assert response.status_code == 200
    assert response.headers["x-blade-ignored"] == "what?ever"
    for name in ("model", "cache_salt"):
        assert server.post(TEXT, prompt="hello", max_tokens=1, **{name: "\0"}).status_code == 400


def test_seeds_as_javascript_rounds_them(server: ServerProcess) -> None:
    last = _text(server, seed=2**63 - 1)
    assert _text(server, seed=9_223_372_036_854_776_000) == last
    assert _text(server, seed=-9_223_372_036_854_776_000) == _text(server, seed=-(2**63))
    refused = server.post(TEXT, prompt="hello", seed=9_223_372_036_854_777_000)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "seed")


def test_a_response_without_verbosity_or_with_top_logprobs_alone(server: ServerProcess) -> None:
    given = {"text": {"verbosity": None}, "top_logprobs": 3}
    response = server.post(RESPONSES, input="hello", max_output_tokens=16, **given)
    assert response.status_code == 200, response.text
    assert response.headers["x-blade-ignored"] == "top_logprobs"
    assert response.json()["text"]["verbosity"] is None
    assert not response.json()["output"][0]["content"][0]["logprobs"]


def test_a_format_without_a_schema_is_any_object() -> None:
    form = ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(name="anything"))
    with noting(strict=False) as notes:
        found = requested_structure(CompletionRequest(prompt="x", response_format=form))
    assert found == (ANY_OBJECT, "response_format")
    assert notes.unknown.header() == "response_format.json_schema"


@pytest.mark.parametrize(
    ("item", "says", "code"),
    [
        ({"id": "msg_1"}, "Item with id 'msg_1' not found", "item_not_found"),
        ({"id": "msg_1", "type": None}, "Item with id 'msg_1' not found", "item_not_found"),
        ({"type": "reasoning", "id": "rs_1", "summary": []}, "holds no text", None),
    ],
)
def test_items_without_a_text(server: ServerProcess, item: dict[str, Any], says: str, code: str | None) -> None:
    error = server.post(RESPONSES, input=[item]).json()["error"]
    assert (error["param"], error["code"]) == ("input", code)
    assert says in error["message"]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "function", "name": "f", "content": "x"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
    ],
)
def test_the_older_form_of_tools_is_said_to_be_unsupported(server: ServerProcess, message: dict[str, Any]) -> None:
    error = server.post(CHAT, messages=[*HELLO, message]).json()["error"]
    assert (error["param"], error["code"]) == ("messages", "unsupported")
    assert "older form" in error["message"]
