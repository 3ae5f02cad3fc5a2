"""Reasoning in outputs, and the two parsers one after the other."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from engine_support.pieces import BORDERS, calls, check_cuts, content, reasoning
from engine_support.tiny_text import write_tokenizer
from examples.families.tokenizers import byte_fallback_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_llm.text.output_parser import OutputParsing
from blade_llm.text.reasoning import DEEPSEEK_R1, MISTRAL, QWEN3, ReasoningForm, ThinkParser, detect_reasoning_parser
from blade_llm.text.tokenizer import Tokenizer
from blade_llm.text.tool_parsers import HERMES


@pytest.mark.parametrize(
    ("inside", "text", "expected_reasoning", "expected_content"),
    [
        (False, "<think>\nHm, well.\n</think>\n\nYes.", "Hm, well.", "Yes."),
        (False, "\n<think>Hm</think>Yes.\n", "Hm", "Yes.\n"),
        (False, "<think>\n\n</think>\n\nYes.", "", "Yes."),
        (False, " Yes. <think>no</think>", "", " Yes. <think>no</think>"),
        (False, "<thin", "", "<thin"),
        (False, "<think>cut sho", "cut sho", ""),
        (False, "<think>cut </thi", "cut </thi", ""),
        (False, "", "", ""),
        (True, "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
        (True, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        (True, "Hm. <think> </thin </think></think>", "Hm. <think> </thin", "</think>"),
        (True, "</think>Yes.", "", "Yes."),
        (True, "cut short", "cut short", ""),
        (True, "\n", "", ""),
    ],
)
def test_think(inside: bool, text: str, expected_reasoning: str, expected_content: str) -> None:
    events = check_cuts(lambda: ThinkParser(QWEN3, inside=inside), text, [2, 9])
    assert reasoning(events) == expected_reasoning
    assert content(events) == expected_content


def test_mistrals_markers() -> None:
    text = "[THINK]Hm <think> [/THIN[/THINK]\n\nYes. [THINK]"
    events = check_cuts(lambda: ThinkParser(MISTRAL, inside=False), text, [2, 9])
    assert (reasoning(events), content(events)) == ("Hm <think> [/THIN", "Yes. [THINK]")
    assert MISTRAL.begins_inside("<s>[INST]x[/INST][THINK]")
    assert not MISTRAL.begins_inside("<s>[INST]x[/INST]<think>")


_PARTS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {}}',
    "<",
    "think",
    ">",
    "a",
]


@given(parts=st.lists(st.sampled_from([*_PARTS, " ", "\n"]), max_size=14), inside=st.booleans(), borders=BORDERS)
@settings(max_examples=500, deadline=None)
def test_any_text_is_read_alike_however_it_is_cut(parts: list[str], inside: bool, borders: list[int]) -> None:
    text = "".join(parts)
    parsing = OutputParsing(calls=HERMES, reasoning=QWEN3, inside=inside)
    events = check_cuts(parsing.parser, text, borders)
    if not inside and not text.lstrip().startswith("<think>"):
        assert reasoning(events) == ""


def test_calls_after_reasoning_and_none_within() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    parsing = OutputParsing(calls=HERMES, reasoning=QWEN3)
    events = check_cuts(parsing.parser, f"<think>perhaps {call}?</think>\n\nFirst this. {call}", [5])
    assert reasoning(events) == f"perhaps {call}?"
    assert content(events) == "First this."
    assert calls(events) == [("f", "{}")]


@pytest.mark.parametrize(
    ("form", "prompt", "inside"),
    [
        (QWEN3, "<|im_start|>assistant\n", False),
        (QWEN3, "<|im_start|>assistant\n<think>\n", True),
        (QWEN3, "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        (DEEPSEEK_R1, "<\uff5cAssistant\uff5c>", True),
        (DEEPSEEK_R1, "<\uff5cAssistant\uff5c><think>\n", True),
        (DEEPSEEK_R1, "<\uff5cAssistant\uff5c><think>\n</think>\n", False),
    ],
)
def test_the_prompt_shows_where_the_output_begins(form: ReasoningForm, prompt: str, inside: bool) -> None:
    assert form.begins_inside(prompt) is inside


@pytest.mark.parametrize(
    ("prompt", "generated", "inside"),
    [
        ("<|im_start|>assistant\n", "<think>\nHm, ", True),
        ("<|im_start|>assistant\n<think>\n", "Hm, ", True),
        ("<|im_start|>assistant\n", "<think>\nHm.\n</think>\n\nYes, ", False),
        ("What is <think>?<|im_start|>assistant\n", "A tag that", False),
    ],
)
def test_an_output_that_is_continued(prompt: str, generated: str, inside: bool) -> None:
    assert QWEN3.begins_inside(prompt + generated, generated) is inside


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ messages[0].content }}", None),
        ("{% if enable_thinking is false %}<think>\n\n</think>{% endif %}", QWEN3),
        ("<\uff5cAssistant\uff5c>{{ content.split('</think>')[-1] }}", DEEPSEEK_R1),
    ],
)
def test_the_template_shows_the_form(template: str, form: ReasoningForm | None) -> None:
    assert detect_reasoning_parser(template) is form


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("byte_level", [False, True])
def test_reasoning_tokens_are_counted_token_by_token(tmp_path: Path, byte_level: bool, inside: bool) -> None:
    backend = None if byte_level else byte_fallback_tokenizer()
    tokenizer = Tokenizer(write_tokenizer(tmp_path / "tokenizer", backend))
    parsing = OutputParsing(reasoning=QWEN3, inside=inside)
    text = "hello \U0001f600</think>" if inside else "<think>hello hello</think>"
    think = tokenizer.encode(text, add_special_tokens=False)
    counter = parsing.reasoning_counter(tokenizer)
    assert counter is not None
    begun = len(think) - 8
    counter.add(think[:begun])
    assert counter.count == begun
    counter.add([*think[begun:], *tokenizer.encode("<think>hello hello</think>", add_special_tokens=False)])
    assert counter.count == len(think)


def test_an_output_without_reasoning_has_no_reasoning_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_tokenizer(tmp_path / "tokenizer"))
    counter = OutputParsing(reasoning=QWEN3).reasoning_counter(tokenizer)
    assert counter is not None
    counter.add(tokenizer.encode("<thinking about it"))
    assert counter.count == 0
    assert OutputParsing(calls=HERMES).reasoning_counter(tokenizer) is None


@pytest.mark.parametrize(
    ("begin", "inside"), [("", False), ("", True), ("<think>a", False), ("<think></think>", False)]
)
def test_white_space_without_end_is_read_once(begin: str, inside: bool) -> None:
    parser = ThinkParser(QWEN3, inside=inside)
    parser.add(begin)
    started = time.thread_time()
    for _ in range(8_000):
        assert parser.add(" " * 64) == []
    assert time.thread_time() - started < 2  # about 0.02; read again with each piece it took half a minute
