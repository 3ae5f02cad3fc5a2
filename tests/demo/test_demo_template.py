"""The demo model's chat template: plain ChatML without tools, tools in the Hermes form, reasoning on demand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from examples.demo_model import measure
from examples.demo_model.template import CHAT_TEMPLATE
from transformers import AutoTokenizer

from blade_llm.text.chat_template import ChatTemplate
from blade_llm.text.reasoning import QWEN3, detect_reasoning_parser
from blade_llm.text.tool_parsers import HERMES, detect_tool_parser

TEMPLATE = ChatTemplate(CHAT_TEMPLATE, {})
TOOL = {"type": "function", "function": {"name": "lookup", "description": "Naïve <lookup>", "parameters": {}}}
CALL = {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": {"name": "len"}}}
WRITTEN = '<tool_call>\n{"name": "lookup", "arguments": {"name": "len"}}\n</tool_call>'
USER = {"role": "user", "content": "What does len do?"}


def message(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize("prompt", [False, True])
def test_without_tools_a_conversation_is_plain_chatml(prompt: bool) -> None:
    messages = [
        message("system", "Be short."), USER, message("assistant", " It\ncounts. ", reasoning_content="Hm."),
        message("developer", ""), message("system", "Now!"), message("user", "<tool_call>"),
    ]  # fmt: skip
    expected = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages)
    expected += "<|im_start|>assistant\n" * prompt
    for arguments in ({}, {"tools": []}, {"enable_thinking": False}):
        assert TEMPLATE.render(messages, add_generation_prompt=prompt, arguments=arguments) == expected


def test_tools_stand_in_the_system_message() -> None:
    text = TEMPLATE.render([message("system", "Be short."), USER], arguments={"tools": [TOOL, TOOL]})
    declared = json.dumps(TOOL, ensure_ascii=False)
    assert text.startswith("<|im_start|>system\nBe short.\n\n# Tools\n")
    assert f"<tools>\n{declared}\n{declared}\n</tools>" in text
    assert text.count("<|im_start|>system") == 1
    alone = TEMPLATE.render([USER], arguments={"tools": [TOOL, TOOL]})
    assert alone == text.replace("Be short.\n\n", "")


def test_calls_and_results_go_back_as_they_were_written() -> None:
    messages = [
        USER, message("assistant", None, tool_calls=[CALL]), message("tool", "It counts."),
        message("assistant", "Once more.", tool_calls=[CALL, CALL]), message("tool", "a"), message("tool", "b"),
    ]  # fmt: skip
    text = TEMPLATE.render(messages, arguments={"tools": [TOOL]})
    assert f"<|im_start|>assistant\n{WRITTEN}<|im_end|>\n" in text
    assert "<|im_start|>user\n<tool_response>\nIt counts.\n</tool_response><|im_end|>\n" in text
    assert f"<|im_start|>assistant\nOnce more.\n{WRITTEN}\n{WRITTEN}<|im_end|>\n" in text
    results = "<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response>"
    assert text.endswith(f"<|im_start|>user\n{results}<|im_end|>\n<|im_start|>assistant\n")


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    call = {**CALL, "function": {"name": "lookup", "arguments": '{"name": '}}
    assert '"arguments": {"name": }\n</tool_call>' in TEMPLATE.render(
        [USER, message("assistant", "", tool_calls=[call])]
    )


def test_thinking_is_opened_by_the_prompt_and_kept_for_this_question_only() -> None:
    plain, thinking = TEMPLATE.render([USER]), TEMPLATE.render([USER], arguments={"enable_thinking": True})
    assert thinking == plain + "<think>\n"
    thought = message("assistant", "", tool_calls=[CALL], reasoning_content="The user asks.")
    turns = [USER, thought, message("tool", "It counts.")]
    assert f"assistant\n<think>\nThe user asks.\n</think>\n\n{WRITTEN}" in TEMPLATE.render(turns)
    assert "The user asks." not in TEMPLATE.render([*turns, USER])


def test_both_parsers_are_found_by_the_template_and_transformers_renders_the_same() -> None:
    assert detect_tool_parser(CHAT_TEMPLATE) is HERMES
    assert detect_reasoning_parser(CHAT_TEMPLATE) is QWEN3
    tokenizer = AutoTokenizer.from_pretrained(measure.HERE / "model")
    assert tokenizer.chat_template == CHAT_TEMPLATE
    messages = [message("system", "Be short."), USER, message("assistant", "", tool_calls=[CALL]), message("tool", "ä")]
    options: dict[str, Any] = {"enable_thinking": True}
    theirs = tokenizer.apply_chat_template(
        messages, tools=[TOOL], tokenize=False, add_generation_prompt=True, **options
    )
    assert theirs == TEMPLATE.render(messages, arguments={"tools": [TOOL], **options})
