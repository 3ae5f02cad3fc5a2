"""What templates get to see of tools, calls and results, and which parsers a model gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_support.tiny_text import write_model
from engine_support.tool_models import LLAMA3, QWEN3, QWEN25, write_tool_model

from blade_llm.api.common.errors import ApiError
from blade_llm.api.common.served_model import ModelSource, ServedModel, load_served_model
from blade_llm.api.tools.messages import with_calls
from blade_llm.api.tools.requests import FunctionDefinition
from blade_llm.api.tools.use import read_tools, template_arguments
from blade_llm.text.errors import TokenizerFilesError
from blade_llm.text.reasoning import REASONING_PARSERS
from blade_llm.text.tool_parsers import TOOL_PARSERS

FUNCTION = FunctionDefinition(name="f", description="F\u00fcr <b>", parameters={"type": "object"}, strict=True)


def _served(folder: Path, **options: Any) -> ServedModel:
    return load_served_model(ModelSource(folder=str(folder), vocab_size=384, names=("m",), **options))


def _prompt(folder: Path, template: str, messages: list[dict[str, Any]]) -> str:
    model = _served(write_tool_model(folder, template))
    assert model.chat_template is not None
    shown = [with_calls(message, f"messages[{index}]") for index, message in enumerate(messages)]
    return model.chat_template.render(shown, arguments=template_arguments(read_tools([FUNCTION], None)))


def _conversation(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]


def test_a_conversation_with_tools_as_qwen_reads_it(tmp_path: Path) -> None:
    prompt = _prompt(tmp_path / "m", QWEN25, _conversation('{"a":  "\u00fc"}'))
    assert '{"type": "function", "function": {"name": "f", "description": "F\u00fcr <b>"' in prompt
    assert "strict" not in prompt
    assert '<tool_call>\n{"name": "f", "arguments": {"a": "\u00fc"}}\n</tool_call><|im_end|>' in prompt
    assert prompt.endswith("<tool_response>\ndone\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


def test_a_conversation_with_tools_as_llama_reads_it(tmp_path: Path) -> None:
    prompt = _prompt(tmp_path / "m", LLAMA3, _conversation("{}"))
    assert '"name": "f"' in prompt
    assert '{"name": "f", "parameters": {}}' in prompt
    assert "<|im_start|>ipython\n" in prompt


@pytest.mark.parametrize(("arguments", "shown"), [("", "{}"), (" ", "{}"), ('{"a": ', '"{\\"a\\": "'), ("[1]", "[1]")])
def test_arguments_that_are_no_object_do_not_end_a_conversation(tmp_path: Path, arguments: str, shown: str) -> None:
    assert f'"arguments": {shown}}}' in _prompt(tmp_path / "m", QWEN25, _conversation(arguments))


def test_messages_without_calls_have_no_such_key() -> None:
    nothings: list[Any] = [None, []]
    for nothing in nothings:
        assert with_calls({"role": "assistant", "content": "x", "tool_calls": nothing}, "m") == {
            "role": "assistant",
            "content": "x",
        }


@pytest.mark.parametrize("calls", [0, False, "", {}, "none"])
def test_calls_must_be_a_list(calls: object) -> None:
    with pytest.raises(ApiError, match=r"m\.tool_calls must be a list"):
        with_calls({"role": "assistant", "content": "x", "tool_calls": calls}, "m")


def test_the_messages_of_a_request_are_not_changed() -> None:
    message = _conversation('{"a": 1}')[1]
    with_calls(message, "m")
    assert message == _conversation('{"a": 1}')[1]


def test_arguments_may_come_parsed() -> None:
    message = _conversation("")[1]
    message["tool_calls"][0]["function"]["arguments"] = {"a": 1}
    assert with_calls(message, "m")["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    message["tool_calls"][0]["function"]["arguments"] = 5
    with pytest.raises(ApiError, match=r"arguments must be a string"):
        with_calls(message, "m")


def test_functions_without_parameters_get_an_empty_schema() -> None:
    use = read_tools([FunctionDefinition(name="f")], None)
    function = template_arguments(use)["tools"][0]["function"]
    assert function == {"name": "f", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("template", "options", "calls", "reasoning"),
    [
        (QWEN25, {}, "hermes", None),
        (QWEN3, {}, "hermes", "qwen3"),
        (LLAMA3, {}, "llama3_json", None),
        (QWEN3, {"tool_call_parser": "none", "reasoning_parser": "none"}, None, None),
        (QWEN25, {"tool_call_parser": "llama3_json", "reasoning_parser": "deepseek_r1"}, "llama3_json", "deepseek_r1"),
    ],
)
def test_a_models_parsers(
    tmp_path: Path, template: str, options: dict[str, str], calls: str | None, reasoning: str | None
) -> None:
    model = _served(write_tool_model(tmp_path / "m", template), **options)
    assert (model.call_form and model.call_form.name, model.reasoning_form and model.reasoning_form.name) == (
        calls,
        reasoning,
    )
    assert model.chat_template is not None
    assert model.chat_template.takes_tools


def test_a_plain_model_has_none(tmp_path: Path) -> None:
    model = _served(write_model(tmp_path / "m"))
    assert (model.call_form, model.reasoning_form) == (None, None)
    assert model.chat_template is not None
    assert not model.chat_template.takes_tools


@pytest.mark.parametrize(
    ("option", "known"),
    [("tool_call_parser", ", ".join(TOOL_PARSERS)), ("reasoning_parser", ", ".join(REASONING_PARSERS))],
)
def test_an_unknown_parser_is_refused_with_the_known_ones(tmp_path: Path, option: str, known: str) -> None:
    with pytest.raises(TokenizerFilesError, match=f"--{option} magic: unknown; known are {known} and none"):
        _served(write_model(tmp_path / "m"), **{option: "magic"})


def test_defaults_of_template_arguments_may_not_take_the_place_of_messages(tmp_path: Path) -> None:
    source = ModelSource(folder=str(write_model(tmp_path)), vocab_size=384, default_chat_template_kwargs={"tools": []})
    with pytest.raises(TokenizerFilesError, match="may not set 'tools'"):
        load_served_model(source)
