"""Tools of models whose calls are no JSON objects, end to end: parsed, and guided in their own form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_support.fake_engine import write_script
from engine_support.server_process import ServerProcess, running_server
from engine_support.tool_models import QWEN25, write_tool_model

MESSAGES = [{"role": "user", "content": "Oslo?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
STRICT = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS, "strict": True}}
ARGUMENTS = '{"city": "Oslo", "days": 3}'
CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
TEMPLATE = QWEN25 + "{# <tool_call><function=NAME><parameter=KEY> #}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tool_model(tmp_path_factory.mktemp("model") / "tools", TEMPLATE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("server"), model, engine="scripted") as process:
        yield process


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "tools", "messages": MESSAGES, "tools": [WEATHER], **fields}


def test_calls_are_parsed_with_the_types_of_the_schema(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Oslo", f"Let me look.\n{CALL}"))
    (choice,) = server.client.chat.completions.create(**_body()).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me look.")
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", ARGUMENTS)
    pieces = [
        call.function.arguments
        for chunk in server.client.chat.completions.create(**_body(stream=True))
        for call in chunk.choices[0].delta.tool_calls or []
    ]
    assert "".join(pieces) == ARGUMENTS
    assert len(pieces) > 4


def test_a_required_call_is_written_as_the_model_was_taught(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Oslo", CALL))
    cases: list[dict[str, Any]] = [{"tool_choice": "required"}, {"tools": [STRICT]}, {"parallel_tool_calls": False}]
    for fields in cases:
        (choice,) = server.client.chat.completions.create(**_body(**fields)).choices
        assert [call.function.arguments for call in choice.message.tool_calls] == [ARGUMENTS]
        assert choice.finish_reason == "tool_calls"
    form = {"type": "json_object"}
    (choice,) = server.client.chat.completions.create(**_body(response_format=form)).choices
    assert [call.function.arguments for call in choice.message.tool_calls] == [ARGUMENTS]
    write_script(model, ("Oslo", '{"a": 1}'))
    (choice,) = server.client.chat.completions.create(**_body(response_format=form)).choices
    assert choice.message.content == '{"a": 1}'


def test_parameters_that_cannot_be_written_one_by_one_are_refused(server: ServerProcess) -> None:
    parameters = {**PARAMETERS, "anyOf": [{"required": ["city"]}, {"required": ["days"]}]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    for stream in (False, True):
        response = server.post(
            "/v1/chat/completions", **_body(tools=[WEATHER, tool], tool_choice="required", stream=stream)
        )
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == "tools"
        assert error["message"].startswith("tools.1.function.parameters: #/anyOf: ")
    free = server.post("/v1/chat/completions", **_body(tools=[WEATHER, tool]))
    assert free.status_code == 200, "where nothing is promised, the model sees it as it is"
