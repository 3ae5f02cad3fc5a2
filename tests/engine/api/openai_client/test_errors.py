"""What is refused, through the official client: its exception for the status, before a stream begins, ``param`` set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from engine_support.openai_calls import Reply, Way, chat, completion, each_way, response
from engine_support.server_process import ServerProcess

NAN = float("nan")
BOTH: dict[str, Any] = {
    "temperature": -1,
    "top_p": -0.1,
    "seed": 2**65,
    "stop": ["s"] * 10_000,
    "stop_token_ids": [10**6],
    "min_tokens": 100,
    "top_k": -2,
    "repetition_penalty": 0,
    "presence_penalty": 3,
    "frequency_penalty": "much",
    "priority": 2**40,
    "min_p": 2,
    "logit_bias": {"100000": 1},
    "cache_salt": 5,
    "bad_words": [""],
    "allowed_token_ids": [10**6],
}
STRUCTURES: dict[str, Any] = {
    "guided_json": {"type": "nothing"},
    "guided_regex": "(",
    "guided_choice": [],
    "guided_grammar": "start: start",
    "structured_outputs": {"json": "{"},
    "guided_decoding_backend": "xgrammar",
}
CHAT = {
    **BOTH,
    **STRUCTURES,
    "response_format": {"type": "yaml"},
    "best_of": -1,
    "prompt_logprobs": 30,
    "n": 0,
    "max_completion_tokens": 0,
    "messages": [],
    "top_logprobs": 3,
}
COMPLETION = {
    **BOTH,
    **STRUCTURES,
    "suffix": "x",
    "best_of": -1,
    "lora_path": "x",
    "n": 200,
    "max_tokens": -1,
    "prompt": [],
    "logprobs": 21,
}
RESPONSE = {
    **BOTH,
    **STRUCTURES,
    "max_output_tokens": 0,
    "input": [],
    "include": ["everything"],
    "top_logprobs": 21,
    "previous_response_id": "resp_1",
    "conversation": "conv_1",
    "prompt": {"id": "pmpt_1"},
    "background": True,
    "truncation": "middle",
    "metadata": {"key": 1},
    "text": {"format": {"type": "yaml"}},
    "tools": [{"type": "teleport"}],
    "tool_choice": "required",
    "reasoning": {"effort": "heroic"},
    "n": 2,
    "max_tokens": 5,
}
CASES = [
    *((chat, name, value) for name, value in CHAT.items()),
    *((completion, name, value) for name, value in COMPLETION.items()),
    *((response, name, value) for name, value in RESPONSE.items()),
]


@each_way
@pytest.mark.parametrize(
    ("call", "name", "value"), CASES, ids=lambda value: getattr(value, "__name__", str(value)[:20])
)
def test_a_400_that_names_the_field(
    server: ServerProcess, way: Way, call: Callable[..., Reply], name: str, value: Any
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        call(server, way, **{name: value})
    error = caught.value
    assert (error.param or "").partition(".")[0] == name
    assert error.type == "invalid_request_error"
    assert name in error.message


@each_way
@pytest.mark.parametrize("call", [chat, completion, response])
def test_an_unknown_model(server: ServerProcess, way: Way, call: Callable[..., Reply]) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        call(server, way, model="gpt-9")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


@each_way
@pytest.mark.parametrize(
    ("call", "field"), [(chat, "messages"), (completion, "prompt"), (response, "input")], ids=lambda v: str(v)[:20]
)
def test_a_prompt_that_is_too_long(server: ServerProcess, way: Way, call: Callable[..., Reply], field: str) -> None:
    long = "word " * 3000
    with pytest.raises(openai.BadRequestError) as caught:
        call(server, way, **{field: [{"role": "user", "content": long}] if field == "messages" else long})
    assert (caught.value.param, caught.value.code) == (field, "context_length_exceeded")


ITEMS: dict[str, Any] = {
    "text": "hello",
    "nothing": {},
    "role": {"role": "robot", "content": "x"},
    "content": {"role": "user", "content": 3},
    "part": {"role": "user", "content": [{"type": "input_text"}]},
    "odd part": {"role": "user", "content": [{"type": ["input_text"], "text": "x"}]},
    "odd role": {"role": ["user"], "content": "x"},
    "odd kind": {"type": {"a": 1}},
    "image": {"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]},
    "image of a file": {"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]},
    "no image": {"role": "user", "content": [{"type": "input_image", "detail": "auto"}]},
    "image said": {"role": "assistant", "content": [{"type": "input_image", "image_url": "data:x"}]},
    "kind": {"type": "web_search_call", "id": "ws_1"},
    "reference": {"type": "item_reference", "id": "msg_1"},
    "call": {"type": "function_call", "call_id": "c", "name": "f"},
    "output": {"type": "function_call_output", "output": "x"},
}


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS.keys())
def test_a_bad_item_is_named(server: ServerProcess, item: Any) -> None:
    with pytest.raises(openai.BadRequestError, match=r"input\[1\]") as caught:
        response(server, Way(False, False), input=[{"role": "user", "content": "x"}, item])
    assert caught.value.param == "input"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
@pytest.mark.parametrize("truncation", ["auto", "disabled"])
def test_a_text_model_refuses_an_image_by_its_place(server: ServerProcess, path: str, truncation: str) -> None:
    image = {"type": "input_image", "image_url": "https://a.example/b.png", "detail": "auto"}
    parts = [{"type": "input_text", "text": "x"}, image]
    places: dict[str, Any] = {
        "input[1].content[1]": {"role": "user", "content": parts},
        "input[1].output[1]": {"type": "function_call_output", "call_id": "c", "output": parts},
    }
    for place, item in places.items():
        items = [{"role": "user", "content": "x"}, item]
        refused = server.post(path, model="tiny-chat", input=items, instructions="be brief", truncation=truncation)
        error = refused.json()["error"]
        assert error["message"].startswith(f"{place}: input_image is not supported by this model"), error
        assert (refused.status_code, error["param"], error["code"]) == (400, "input", "unsupported")
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": {}}]}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": ["x"]}}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice"),
        ({"tools": [{"type": ["function"]}]}, "tools"),
        ({"tools": [{"type": "function", "name": ["f"]}]}, "tools"),
        ({"text": {"format": {}}}, "text.format"),
        ({"text": {"format": {"type": ["text"]}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": 1, "schema": {}}}}, "text.format"),
        ({"text": {"format": {}}, "response_format": {"type": "json_object"}}, "text"),
        ({"text": {"verbosity": "red"}}, "text"),
        ({"reasoning": {"effort": []}}, "reasoning"),
        ({"stream_options": {"include_obfuscation": "much"}}, "stream_options"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
    ],
    ids=str,
)
def test_odd_values_of_a_response(server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        response(server, Way(False, False), **fields)
    assert caught.value.param == param
