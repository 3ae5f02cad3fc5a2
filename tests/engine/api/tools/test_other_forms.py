"""Tools of models whose calls are no JSON objects, end to end: parsed under ``auto``, JSON where a call is required."""

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


def test_a_required_call_is_a_json_object(server: ServerProcess, model: Path) -> None:
    write_script(model, ("Oslo", f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'))
    (choice,) = server.client.chat.completions.create(**_body(tool_choice="required")).choices
    assert [call.function.arguments for call in choice.message.tool_calls] == [ARGUMENTS]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]}, "tools"),  # type: ignore[dict-item]
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_needs_a_grammar_of_the_calls_is_refused(
    server: ServerProcess, fields: dict[str, Any], param: str
) -> None:
    response = server.post("/v1/chat/completions", **_body(**fields))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert "qwen3_coder" in error["message"]
