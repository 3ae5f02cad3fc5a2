"""Tools as coding agents declare them: freeform ones, namespaces, and those that only OpenAI's servers run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from engine_support.fake_engine import write_script
from engine_support.openai_calls import Way, each_way, response
from engine_support.openai_shapes import problems
from engine_support.openai_streams import check_response_stream, chunks_of, response_events
from engine_support.server_process import ServerProcess, running_server
from engine_support.tool_models import QWEN3, write_tool_model
from openai.types.responses import Response

from blade_protocol import headers

PATCH_TEXT = '*** Begin Patch\n*** Add File: a.py\n+print("\u2600")\n*** End Patch\n'
GRAMMAR = 'start: "*** Begin Patch" LF /.+/s "*** End Patch" LF?\n%import common.LF'
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
}
IN_CHAT = {
    "type": "custom",
    "custom": {
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": GRAMMAR}},
    },
}
SHELL = {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {"cmd": {}}}}
SPAWN = {
    "type": "function",
    "name": "spawn",
    "description": "A new one.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"task": {"type": "string"}}},
}
AGENTS = {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [SPAWN]}
WORD = {"type": "custom", "name": "word", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-c]{3}"}}


def _call(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = write_tool_model(tmp_path_factory.mktemp("model") / "tools", QWEN3)
    write_script(
        folder,
        ("edit it", _call("apply_patch", {"input": PATCH_TEXT})),
        ("delegate", _call("agents__spawn", {"task": "x"})),
        ("say a word", _call("word", {"input": "hello"})),
        ("Success", "Done."),
    )
    with running_server(tmp_path_factory.mktemp("server"), folder, engine="scripted") as process:
        yield process


def _final(server: ServerProcess, way: Way, **fields: Any) -> Any:
    return response(server, way, **{"model": "tools", "max_output_tokens": None, **fields}).raw[-1]


@each_way
def test_a_freeform_call_and_its_result(server: ServerProcess, way: Way) -> None:
    final = _final(server, way, input="edit it", tools=[SHELL, PATCH])
    (call,) = final.output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "apply_patch", PATCH_TEXT)
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Success"}
    items = [{"role": "user", "content": "edit it"}, call, result]
    assert _final(server, way, input=items, tools=[SHELL, PATCH]).output_text == "Done."


def test_a_freeform_call_in_a_chat(server: ServerProcess) -> None:
    messages: list[Any] = [{"role": "user", "content": "edit it"}]
    body = {"model": "tools", "tools": [IN_CHAT]}
    chunks = chunks_of(server.post("/v1/chat/completions", messages=messages, **body, stream=True))
    deltas = [call for chunk in chunks for one in chunk["choices"] for call in one["delta"].get("tool_calls", ())]
    assert (deltas[0]["type"], deltas[0]["custom"]) == ("custom", {"name": "apply_patch", "input": ""})
    assert len(deltas) > 2
    assert "".join(delta["custom"]["input"] for delta in deltas) == PATCH_TEXT
    found = server.client.chat.completions.create(messages=messages, **body)  # type: ignore[call-overload]
    (choice,) = found.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "apply_patch", PATCH_TEXT)
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "Success"}]
    again = server.client.chat.completions.create(messages=messages, **body)  # type: ignore[call-overload]
    assert again.choices[0].message.content == "Done."


@each_way
def test_a_function_in_a_namespace(server: ServerProcess, way: Way) -> None:
    final = _final(server, way, input="delegate", tools=[SHELL, AGENTS])
    (call,) = final.output
    assert (call.type, call.name, call.namespace) == ("function_call", "spawn", "agents")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Success"}
    items = [{"role": "user", "content": "delegate"}, call, result]
    again = _final(server, way, input=items, tools=[SHELL, AGENTS])
    assert again.output_text == "Done."
    flat = {"type": "function", "name": "agents__spawn", "arguments": call.arguments, "call_id": call.call_id}
    same = _final(server, way, input=[items[0], {**flat, "type": "function_call"}, result], tools=[SHELL, AGENTS])
    assert same.usage.input_tokens == again.usage.input_tokens


@pytest.mark.parametrize("stream", [True, False])
def test_tools_of_the_server_are_ignored_and_named(server: ServerProcess, stream: bool) -> None:
    kinds = ["web_search", "web_search_preview_2025_03_11", "file_search", "code_interpreter", "image_generation"]
    kinds += ["local_shell", "mcp", "computer_use_preview"]
    tools = [SHELL, *({"type": kind} for kind in kinds)]
    found = server.post("/v1/responses", input="Success", tools=tools, stream=stream)
    assert found.status_code == 200
    assert found.headers[headers.IGNORED].split(", ") == [f"tools[{i + 1}].{kind}" for i, kind in enumerate(kinds)]
    messages = [{"role": "user", "content": "Success"}]
    found = server.post("/v1/chat/completions", messages=messages, tools=[{"type": "web_search"}], stream=stream)
    assert (found.status_code, found.headers[headers.IGNORED]) == (200, "tools[0].web_search")


def test_the_place_of_a_wrong_tool_is_the_request_s(server: ServerProcess) -> None:
    wrong = {"type": "object", "properties": {"a": {"$ref": 3}}}
    inner = [{"type": "function", "name": name, "strict": True, "parameters": wrong} for name in ("f", "g")]
    inner[0]["parameters"] = {"type": "object"}
    tools = [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": inner}]
    error = server.post("/v1/responses", input="x", tools=tools).json()["error"]
    assert (error["param"], error["message"].partition(": ")[0]) == ("tools", "tools.1.tools.1.parameters")


def test_what_is_not_ignored_has_no_header(server: ServerProcess) -> None:
    assert headers.IGNORED not in server.post("/v1/responses", input="Success", tools=[SHELL, AGENTS]).headers


@each_way
def test_a_text_held_to_an_expression(server: ServerProcess, way: Way) -> None:
    """The script's word is none that the expression allows."""
    (call,) = _final(server, way, input="say a word", tools=[WORD]).output
    assert (call.type, len(call.input), set(call.input) <= set("abc")) == ("custom_tool_call", 3, True)


@each_way
def test_a_freeform_tool_that_is_chosen(server: ServerProcess, way: Way) -> None:
    choice = {"type": "custom", "name": "word"}
    (call,) = _final(server, way, input="Success", tools=[SHELL, WORD, PATCH], tool_choice=choice).output
    assert (call.type, call.name) == ("custom_tool_call", "word")


def test_a_strict_at_the_top_level_counts(server: ServerProcess) -> None:
    function = {"name": "word", "parameters": {"type": "object", "properties": {"input": {"enum": ["x"]}}}}
    body = {"model": "tools", "messages": [{"role": "user", "content": "say a word"}]}

    def arguments(**fields: Any) -> str:
        tools = [{"type": "function", "function": function, **fields}]
        call = server.post("/v1/chat/completions", **body, tools=tools).json()["choices"][0]["message"]["tool_calls"][0]
        return str(call["function"]["arguments"])

    assert "hello" in arguments()
    assert "hello" not in arguments(strict=True)


def test_shapes(server: ServerProcess) -> None:
    for text, tools in (("edit it", [PATCH]), ("delegate", [AGENTS]), ("edit it", [PATCH, {"type": "web_search"}])):
        body = {"input": text, "tools": tools}
        whole = server.post("/v1/responses", **body).json()
        assert problems(whole, Response) == []
        final = check_response_stream(response_events(server.post("/v1/responses", **body, stream=True)))
        assert [item["type"] for item in final["output"]] == [item["type"] for item in whole["output"]]


@pytest.mark.parametrize("limit", [1, 20, 30, 60])
def test_a_call_that_is_cut(server: ServerProcess, limit: int) -> None:
    body = {"input": "edit it", "tools": [PATCH], "max_output_tokens": limit}
    final = check_response_stream(response_events(server.post("/v1/responses", **body, stream=True)))
    for item in final["output"]:
        assert PATCH_TEXT.startswith(item.get("input", ""))


@pytest.mark.parametrize(
    "choice", ["web_search", "file_search", {"type": "web_search"}, {"type": "mcp", "server_label": "x"}], ids=str
)
def test_no_call_of_them_can_be_forced(server: ServerProcess, choice: Any) -> None:
    tools = [SHELL, {"type": "web_search"}, {"type": "mcp", "server_label": "x"}]
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.responses.create(model="tools", input="x", tools=tools, tool_choice=choice)  # type: ignore[call-overload]
    assert caught.value.param == "tool_choice"
