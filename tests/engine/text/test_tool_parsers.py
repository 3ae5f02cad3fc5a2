"""Tool calls in outputs: what is a call and what is text, however the text is cut."""

from __future__ import annotations

import json
import time

import pytest
from engine_support.examples import examples
from engine_support.pieces import BORDERS, calls, check_cuts, content
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_llm.text.events import Arguments, CallBegun, CallEnded, Content, Event, merged
from blade_llm.text.tool_parsers import HERMES, LLAMA3_JSON, CallForm, CallParser, detect_tool_parser

NAMES = ("get_weather", "add", "caf\u00e9_menu")


def _parse(form: CallForm, text: str) -> list[Event]:
    return check_cuts(lambda: CallParser(form, NAMES), text, [3, 17])


def _hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


OBJECT = '{"name": "get_weather", "arguments": {"city": "S\u00e3o Paulo", "days": [1, {"a": null}], "x": "}\\"{"}}'
ARGUMENTS = OBJECT[OBJECT.index('{"city') : -1]


@pytest.mark.parametrize(
    ("text", "expected_content", "expected_calls"),
    [
        ("no call at all\n\n", "no call at all\n\n", []),
        ("", "", []),
        (_hermes(OBJECT), "", [("get_weather", ARGUMENTS)]),
        (f"Let me see.\n\n{_hermes(OBJECT)}", "Let me see.", [("get_weather", ARGUMENTS)]),
        (f"{_hermes(OBJECT)}\n{_hermes(OBJECT)}\n", "", [("get_weather", ARGUMENTS)] * 2),
        (f"a {_hermes(OBJECT)} b \n{_hermes(OBJECT)}\nc\n", "abc\n", [("get_weather", ARGUMENTS)] * 2),
        ('<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', "", [("add", '{"a": 1}')]),
        (_hermes('{"name": "add", "parameters": {}}'), "", [("add", "{}")]),
        (_hermes('{"name": "add"}'), "", [("add", "{}")]),
        (_hermes('{"name": "add", "arguments": null}'), "", [("add", "{}")]),
        (_hermes('{"name": "add", "arguments": "{\\"a\\": 1}"}'), "", [("add", '{"a": 1}')]),
        (_hermes('{"type": "function", "id": 7, "name": "add", "arguments": {"a": 1}, "more": [{}]}'), "",
         [("add", '{"a": 1}')]),
        (_hermes('{"name": "a\\u0064d", "arguments": { "a" :\n1 }}'), "", [("add", '{ "a" :\n1 }')]),
        (_hermes('{"name": "other", "arguments": {}}'), "", [("other", "{}")]),
        # mistakes that leave no doubt
        (_hermes('{"name": "add", "arguments": {"a": 1}'), "", [("add", '{"a": 1}')]),
        (_hermes('{"name": "add", "arguments": {"a": 1'), "", [("add", '{"a": 1\n')]),
        (_hermes('{"name": "add", "arguments": {"a": True,, }}'), "", [("add", '{"a": True,, }')]),
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}', "", [("add", '{"a": 1}')]),
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool', "", [("add", '{"a": 1}')]),
        ('<tool_call>\n{"name": "add", "arguments": {"a": "un', "", [("add", '{"a": "un')]),
        ('<tool_call>\n{"name": "add", "arguments": {}} and then', "and then", [("add", "{}")]),
        ('<tool_call>\n<tool_call>\n{"name": "add", "arguments": {}}', "<tool_call>", [("add", "{}")]),
        # no calls
        ("a <tool_call> b", "a <tool_call> b", []),
        ("a <tool_ca", "a <tool_ca", []),
        (" \n<tool_call>\n", " \n<tool_call>\n", []),
        (_hermes("{}"), _hermes("{}"), []),
        (_hermes('{"name": 5, "arguments": {}}'), _hermes('{"name": 5, "arguments": {}}'), []),
        (_hermes('{"name": "", "arguments": {}}'), _hermes('{"name": "", "arguments": {}}'), []),
        (_hermes('{"name": "\\ud800", "arguments": {}}'), _hermes('{"name": "\\ud800", "arguments": {}}'), []),
        (_hermes('{"name": "add", "arguments": [1]}'), _hermes('{"name": "add", "arguments": [1]}'), []),
        (_hermes('{"name": "add", "arguments": "no"}'), _hermes('{"name": "add", "arguments": "no"}'), []),
        (_hermes('{"arguments": {"a": 1}}'), _hermes('{"arguments": {"a": 1}}'), []),
        (_hermes("<function=add>"), _hermes("<function=add>"), []),
        ('<tool_call>\n{"name": "add"', '<tool_call>\n{"name": "add"', []),
    ],
)  # fmt: skip
def test_hermes(text: str, expected_content: str, expected_calls: list[tuple[str, str]]) -> None:
    events = _parse(HERMES, text)
    assert content(events) == expected_content
    assert calls(events) == expected_calls


LLAMA = '{"name": "add", "parameters": {"a": 1}}'


@pytest.mark.parametrize(
    ("text", "expected_content", "expected_calls"),
    [
        ("just text {", "just text {", []),
        (LLAMA, "", [("add", '{"a": 1}')]),
        (f"\n {LLAMA}\n", "", [("add", '{"a": 1}')]),
        (f"<|python_tag|>{LLAMA}", "", [("add", '{"a": 1}')]),
        (f"I add.\n<|python_tag|>{LLAMA}", "I add.", [("add", '{"a": 1}')]),
        (f"{LLAMA}; {LLAMA} ;\n<|python_tag|>{LLAMA}", "", [("add", '{"a": 1}')] * 3),
        ('{"type": "function", "name": "add", "parameters": {}}', "", [("add", "{}")]),
        ('<|python_tag|>{"name": "other", "parameters": {}}', "", [("other", "{}")]),
        (f"{LLAMA} and text", "and text", [("add", '{"a": 1}')]),
        # no calls
        (f"See: {LLAMA}", f"See: {LLAMA}", []),
        ('{"name": "Ada", "parameters": {}}', '{"name": "Ada", "parameters": {}}', []),
        ('{"name": "add"}', '{"name": "add"}', []),
        ('{"answer": 5}', '{"answer": 5}', []),
        (" {", " {", []),
        ('<|python_tag|>brave_search.call(query="x")', '<|python_tag|>brave_search.call(query="x")', []),
        ("<|python_t", "<|python_t", []),
        (f"{LLAMA};", ";", [("add", '{"a": 1}')]),
        (f'{LLAMA}; {{"b": 1}}', '; {"b": 1}', [("add", '{"a": 1}')]),
        (f"{LLAMA}; and text", "; and text", [("add", '{"a": 1}')]),
    ],
)
def test_llama(text: str, expected_content: str, expected_calls: list[tuple[str, str]]) -> None:
    events = _parse(LLAMA3_JSON, text)
    assert content(events) == expected_content
    assert calls(events) == expected_calls


def test_everything_comes_as_early_as_it_can() -> None:
    parser = CallParser(HERMES)
    pieces = ["Hi", " <", "b> ", "\n<tool", "_call>\n", '{"name": "a', 'dd", "arguments": ', '{"a', '": 1', "}", "}"]
    seen = [parser.add(piece) for piece in pieces]
    assert seen == [
        [Content("Hi")], [], [Content(" <b>")], [], [], [], [],
        [CallBegun(0, "add"), Arguments(0, '{"a')], [Arguments(0, '": 1')], [Arguments(0, "}")], [CallEnded(0)],
    ]  # fmt: skip


def test_content_in_text_order() -> None:
    events = _parse(HERMES, f"a {_hermes(LLAMA)} b")
    assert merged(events) == [
        Content("a"), CallBegun(0, "add"), Arguments(0, '{"a": 1}'), CallEnded(0), Content("b")
    ]  # fmt: skip


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_TEXT = st.text(st.sampled_from('ab <>{}[]":,;\\\n|_'), max_size=12)
_FRAGMENTS = ["<tool_call>", "</tool_call>", "<|python_tag|>", '{"name": "add", ', '"arguments": ', LLAMA, "; ", "\n"]


@st.composite
def _call(draw: st.DrawFn) -> tuple[str, str, str]:
    """(text of the object, name, arguments)"""
    name = draw(st.sampled_from(NAMES))
    indent, ascii_only = draw(st.sampled_from([None, 1])), draw(st.booleans())
    arguments = json.dumps(
        draw(st.dictionaries(st.text(max_size=6), _JSON, max_size=3)), indent=indent, ensure_ascii=ascii_only
    )
    return f'{{"name": {json.dumps(name)}, "parameters": {arguments}}}', name, arguments


@pytest.mark.parametrize("form", [HERMES, LLAMA3_JSON], ids=lambda form: form.name)
@given(found=st.lists(_call(), min_size=1, max_size=3), borders=BORDERS)
@settings(max_examples=examples(150), deadline=None)
def test_calls_come_out_as_they_were_written(
    form: CallForm, found: list[tuple[str, str, str]], borders: list[int]
) -> None:
    text = "\n".join(_hermes(body) for body, _, _ in found)
    if form is LLAMA3_JSON:
        text = "; ".join(body for body, _, _ in found)
    events = check_cuts(lambda: CallParser(form, NAMES), text, borders)
    assert content(events) == ""
    assert calls(events) == [(name, arguments) for _, name, arguments in found]


@pytest.mark.parametrize("form", [HERMES, LLAMA3_JSON], ids=lambda form: form.name)
@given(parts=st.lists(_TEXT | st.sampled_from(_FRAGMENTS), max_size=10), borders=BORDERS)
@settings(max_examples=examples(600), deadline=None)
def test_any_text_is_read_alike_however_it_is_cut(form: CallForm, parts: list[str], borders: list[int]) -> None:
    text = "".join(parts)
    events = check_cuts(lambda: CallParser(form, NAMES), text, borders)
    if not calls(events):
        assert content(events) == text, "nothing is lost"


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}... return each call within <tool_call></tool_call> tags", HERMES),
        ("<tool_call>\n<function=name>", None),
        ("{{ '<|python_tag|>' + message }}", LLAMA3_JSON),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', LLAMA3_JSON),
        ("{{ messages[0].content }}", None),
    ],
)
def test_the_template_shows_the_form(template: str, form: CallForm | None) -> None:
    assert detect_tool_parser(template) is form


@pytest.mark.parametrize(
    ("form", "begin"),
    [
        (HERMES, "a"),
        (HERMES, "<tool_call>"),
        (HERMES, f"<tool_call>{OBJECT}"),
        (LLAMA3_JSON, ""),
        (LLAMA3_JSON, '{"name": "add", "parameters": {}};'),
    ],
)
def test_white_space_without_end_is_read_once(form: CallForm, begin: str) -> None:
    parser = CallParser(form, NAMES)
    parser.add(begin)
    started = time.thread_time()
    for _ in range(8_000):
        assert parser.add(" " * 64) == []
    assert time.thread_time() - started < 2  # about 0.2; read again with each piece it took half a minute
