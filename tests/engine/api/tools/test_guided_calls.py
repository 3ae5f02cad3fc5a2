"""Calls that have to follow their schemas, end to end: a model that would rather not is made to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from engine_support.fake_engine import write_script
from engine_support.server_process import ServerProcess, running_server
from engine_support.tool_models import LLAMA3, QWEN3, QWEN25, write_tool_model

from blade_llm.text.tool_parsers.named import DEEPSEEK_MARKERS

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 31}, "maxItems": 3},
    },
    "required": ["unit", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA, "strict": True}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "maxProperties": 0}}}
MESSAGES = [{"role": "user", "content": "Weather?"}]
BEGIN, END, CALL, CALL_END, SEP = DEEPSEEK_MARKERS
PLAIN = QWEN25.replace("tool_call>", "call>")
TEMPLATES = {
    "qwen3": QWEN3,
    "llama3": LLAMA3,
    "mistral": PLAIN + "{# [TOOL_CALLS][ #}",
    "mistral_names": PLAIN + "{# [TOOL_CALLS]NAME[ARGS] #}",
    "deepseek_v3": PLAIN + f"{{# {CALL}function{SEP}NAME\n```json #}}",
    "deepseek_v31": PLAIN + f"{{# {CALL}NAME{SEP} #}}",
    "qwen3_coder": QWEN25 + "{# <tool_call><function=NAME><parameter=KEY> #}",
    "glm45": QWEN25 + "{# <tool_call>NAME<arg_key> #}",
    "pythonic": PLAIN + "{# put it in the format of [func_name1(params_name1=params_value1)] #}",
}
BEGINNINGS = {
    "qwen3": '<tool_call>\n{"name": "get_weather", "arguments": {"unit": "C", "days": [3]}}\n</tool_call>',
    "llama3": '{"name": "get_weather", "parameters": {"unit": "C", "days": [3]}}',
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"unit": "C", "days": [3]}}]',
    "mistral_names": '[TOOL_CALLS]get_weather[ARGS]{"unit": "C", "days": [3]}',
    "deepseek_v3": f'{BEGIN}{CALL}function{SEP}get_weather\n```json\n{{"unit": "C", "days": [3]}}\n```{CALL_END}{END}',
    "deepseek_v31": f'{BEGIN}{CALL}get_weather{SEP}{{"unit": "C", "days": [3]}}{CALL_END}{END}',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=unit>\nC\n</parameter>\n<parameter=days>\n[3]\n"
    "</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>get_weather\n<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>[3]</arg_value>\n</tool_call>",
    "pythonic": '[get_weather(unit="C", days=[3])]',
}
"""A whole call in each form."""
Served = tuple[ServerProcess, Path]


@pytest.fixture(scope="module", params=TEMPLATES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = write_tool_model(tmp_path_factory.mktemp("model") / request.param, TEMPLATES[request.param])
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, model, engine="scripted") as server:
        yield server, model


def _complete(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    response = server.post("/v1/chat/completions", messages=MESSAGES, max_tokens=200, **fields)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def _check(choice: dict[str, Any]) -> list[str]:
    names = []
    for call in choice["message"]["tool_calls"]:
        names.append(call["function"]["name"])
        if names[-1] == "get_weather":
            jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
    return names


@pytest.mark.parametrize("script", ["I would rather not.", "{}", '{"name": "other"}', ""])
def test_required_is_a_valid_call_whatever_the_model_wants(served: Served, script: str) -> None:
    server, model = served
    write_script(model, ("Weather?", script))
    choice = _complete(server, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    assert _check(choice) == ["get_weather"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None


def test_a_named_function_is_the_one_that_is_called(served: Served) -> None:
    server, model = served
    write_script(model, ("Weather?", "Never."))
    for name in ("get_weather", "clock"):
        choice = _complete(server, tools=[WEATHER, CLOCK], tool_choice={"type": "function", "function": {"name": name}})
        assert _check(choice) == [name]
        assert choice["finish_reason"] == "stop"


def test_a_strict_function_may_be_called_or_not(served: Served) -> None:
    server, model = served
    write_script(model, ("Weather?", "It is warm <here>."))
    choice = _complete(server, tools=[STRICT])
    assert choice["message"]["content"] == "It is warm <here>."
    assert choice["finish_reason"] == "stop"
    write_script(model, ("Weather?", BEGINNINGS[model.name].replace("days", "city")))
    choice = _complete(server, tools=[STRICT], parallel_tool_calls=False)
    assert _check(choice) == ["get_weather"]
    assert choice["finish_reason"] == "tool_calls"


def test_content_in_a_format_or_a_call(served: Served) -> None:
    server, model = served
    schema = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    write_script(model, ("Weather?", '{"warm": true}'))
    choice = _complete(server, tools=[STRICT], response_format=form)
    assert choice["message"]["content"] == '{"warm": true}'
    write_script(model, ("Weather?", BEGINNINGS[model.name]))
    choice = _complete(server, tools=[STRICT], response_format=form, parallel_tool_calls=False)
    assert _check(choice) == ["get_weather"]


def test_a_call_is_streamed_after_the_reasoning(served: Served) -> None:
    server, model = served
    thought = "<think>\nHm.\n</think>\n\n" if "<think>" in TEMPLATES[model.name] else ""
    write_script(model, ("Weather?", thought + BEGINNINGS[model.name]))
    expected = '{"unit": "C", "days": [3]}'
    cases: list[dict[str, Any]] = [
        {"tool_choice": "required", "parallel_tool_calls": False}, {"tools": [STRICT]}, {"n": 2}
    ]  # fmt: skip
    for fields in cases:
        body = {"model": model.name, "messages": MESSAGES, "tools": [WEATHER], "max_tokens": 400, **fields}
        arguments: dict[int, str] = {}
        reasoning: dict[int, str] = {}
        ends: dict[int, str | None] = {}
        for chunk in server.client.chat.completions.create(**body, stream=True, logprobs=True):
            (choice,) = chunk.choices
            reasoning[choice.index] = reasoning.get(choice.index, "") + (
                getattr(choice.delta, "reasoning_content", None) or ""
            )
            for call in choice.delta.tool_calls or []:
                arguments[choice.index] = arguments.get(choice.index, "") + (call.function.arguments or "")
            ends[choice.index] = choice.finish_reason
            assert not choice.delta.content
        choices = range(fields.get("n", 1))
        assert arguments == dict.fromkeys(choices, expected)
        assert ends == dict.fromkeys(choices, "tool_calls")
        assert reasoning == dict.fromkeys(choices, "Hm." if thought else "")


def test_a_schema_that_cannot_be_followed_is_refused_before_a_stream_begins(served: Served) -> None:
    server, _ = served
    tool = {"type": "function", "function": {"name": "f", "parameters": {"not": {"required": ["a"]}, "type": "object"}}}
    for stream in (False, True):
        response = server.post(
            "/v1/chat/completions", messages=MESSAGES, tools=[CLOCK, tool], tool_choice="required", stream=stream
        )
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == "tools"
        assert error["message"].startswith("tools.1.function.parameters: ")
    free = _complete(server, tools=[CLOCK, tool])  # where nothing is promised, the model sees it as it is
    assert free["finish_reason"] in ("stop", "tool_calls")
