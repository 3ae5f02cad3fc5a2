"""Calls that are no JSON objects: Qwen3-Coder's, GLM's, DeepSeek's, Mistral's and Python's."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from engine_support.pieces import BORDERS, calls, check_cuts, content
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_llm.text.events import Arguments, CallBegun, CallEnded, Content, Event
from blade_llm.text.tool_parsers import TOOL_PARSERS, as_taught, detect_tool_parser
from blade_llm.text.tool_parsers.named import DEEPSEEK_MARKERS

NAMES = ("get_weather", "add")
PARAMETERS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"}, "unit": {"enum": ["C", "F"]}, "days": {"type": "integer"},
            "place": {"$ref": "#/$defs/place"}, "level": {"$ref": "#/$defs/level"},
            "when": {"type": ["string", "null"]}, "x": {"anyOf": [{"type": "object"}, {"type": "array"}]},
        },
        "$defs": {"place": {"enum": ["5", "6"]}, "level": {"type": "integer"}},
    }
}  # fmt: skip
READERS = {name: form for name, form in TOOL_PARSERS.items() if form.reader is not None}
CALLS, CALLS_END, CALL, CALL_END, SEP = DEEPSEEK_MARKERS


def _parse(name: str, text: str, borders: tuple[int, ...] = (3, 17, 40)) -> list[Event]:
    return check_cuts(lambda: TOOL_PARSERS[name].parser(NAMES, PARAMETERS), text, borders)


def _coder(name: str, **arguments: str) -> str:
    tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>"


def _glm(name: str, **arguments: str) -> str:
    pairs = (f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


V3 = f'{CALL}function{SEP}add\n```json\n{{"a": 1}}\n```{CALL_END}'
V31 = f'{CALL}add{SEP}{{"a": 1}}{CALL_END}'
ADD = ("add", '{"a": 1}')
OBJECT = '{"name": "add", "arguments": {"a": 1}}'


@pytest.mark.parametrize(
    ("name", "text", "expected_content", "expected_calls"),
    [
        ("qwen3_coder", "Look.\n\n" + _coder("get_weather", city="S\u00e3o <b>", days="3") + "\n", "Look.",
         [("get_weather", '{"city": "S\u00e3o <b>", "days": 3}')]),
        ("qwen3_coder", _coder("get_weather", x='{"a": [1]}', when="null", unit="C"), "",
         [("get_weather", '{"x": {"a": [1]}, "when": null, "unit": "C"}')]),
        ("qwen3_coder", _coder("get_weather", x="{'a': True}", days="three", when="now"), "",
         [("get_weather", '{"x": {"a": true}, "days": "three", "when": "now"}')]),
        ("qwen3_coder", _coder("add", other="5") + "\n" + _coder("add"), "",
         [("add", '{"other": "5"}'), ("add", "{}")]),
        ("qwen3_coder", _coder("get_weather", city='a\n\n"b"\n'), "",
         [("get_weather", '{"city": "a\\n\\n\\"b\\"\\n"}')]),
        ("qwen3_coder", "<tool_call><function=get_weather><parameter=city>x</parameter></function></tool_call> b", "b",
         [("get_weather", '{"city": "x"}')]),
        ("qwen3_coder", "a <function=add>\n</function> b", "ab", [("add", "{}")]),
        ("qwen3_coder", "<tool_call>\n<function=add>\n</tool_call>x", "x", [("add", "{}")]),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs</par", "",
         [("get_weather", '{"city": "Os')]),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=days>\n12", "", [("get_weather", "")]),
        ("qwen3_coder", f"{_coder('add')[:-5]}", "", [("add", "{}")]),
        ("qwen3_coder", 'a <tool_call> {"name": 1}', 'a <tool_call> {"name": 1}', []),
        ("qwen3_coder", "<tool_call>\n<function=", "<tool_call>\n<function=", []),
        ("qwen3_coder", "<function=a b>", "<function=a b>", []),
        ("glm45", f"Look.\n{_glm('get_weather', city='Oslo', days='3')}\n{_glm('add')}", "Look.",
         [("get_weather", '{"city": "Oslo", "days": 3}'), ("add", "{}")]),
        ("glm45", "<tool_call>get_weather<arg_key>city</arg_key><arg_value> \n</arg_value></tool_call>", "",
         [("get_weather", '{"city": " \\n"}')]),
        ("glm45", "<tool_call>add</tool_call> b", "b", [("add", "{}")]),
        ("glm45", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Os", "",
         [("get_weather", '{"city": "Os')]),
        ("glm45", "<tool_call>add\n<arg_key>x</arg_key> y", "y", [("add", "")]),
        ("glm45", "<tool_call> two words", "<tool_call> two words", []),
        ("glm45", "<tool_call>add", "<tool_call>add", []),
        ("deepseek_v3", f"Hm. {CALLS}{V3}\n{V3}{CALLS_END}", "Hm.", [ADD, ADD]),
        ("deepseek_v31", f"Hm. {CALLS}{V31}{V31}{CALLS_END} b", "Hm.b", [ADD, ADD]),
        ("deepseek_v31", f"{V31}", "", [ADD]),
        ("deepseek_v3", f'{CALLS}{CALL}function{SEP}add\n```json\n{{"a": "1', "", [("add", '{"a": "1')]),
        ("deepseek_v3", f"{CALLS}{V3[:-4]}", "", [ADD]),
        ("deepseek_v3", f"{CALLS}{CALL}function{SEP}add\nno", f"{CALLS}{CALL}function{SEP}add\nno", []),
        ("deepseek_v3", f"a {CALLS} b", f"a {CALLS} b", []),
        ("mistral", f"a [TOOL_CALLS] [{OBJECT}, {OBJECT}]", "a", [ADD, ADD]),
        ("mistral", f"[TOOL_CALLS][{OBJECT}]\n\nb", "b", [ADD]),
        ("mistral", f"[TOOL_CALLS]{OBJECT}", "", [ADD]),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add{"a": 1}', "", [ADD, ADD]),
        ("mistral", '[TOOL_CALLS]add[CALL_ID]abc[ARGS]{"a": 1}', "", [ADD]),
        ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {"a"', "", [("add", '{"a"')]),
        ("mistral", '[TOOL_CALLS][{"name": "add"', '[TOOL_CALLS][{"name": "add"', []),
        ("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
        ("mistral", "[TOOL_CALLS]x y", "[TOOL_CALLS]x y", []),
        ("mistral", f'[TOOL_CALLS][{OBJECT}, {{"x": 1}}] z', ', {"x": 1}] z', [ADD]),
        ("pythonic", "[add(a=1)]", "", [ADD]),
        ("pythonic", "[get_weather(city='Os\\'lo, (\"N\")', days=-3), add(a = 1,)]", "",
         [("get_weather", '{"city": "Os\'lo, (\\"N\\")", "days": -3}'), ADD]),
        ("pythonic", "[get_weather(x={'a': [None, True, (1, 2)]}), add()]", "",
         [("get_weather", '{"x": {"a": [null, true, [1, 2]]}}'), ("add", "{}")]),
        ("pythonic", "\n<|python_start|>[add(a=1)]<|python_end|>\nb", "b", [ADD]),
        ("pythonic", '[get_weather(when=null, city="\\ud83d")]', "",
         [("get_weather", '{"when": null, "city": "\\ud83d"}')]),
        ("pythonic", "[add(a=1), other(b=2)]", "", [ADD, ("other", '{"b": 2}')]),
        ("pythonic", "[add(a=1, city='Os", "", [("add", '{"a": 1')]),
        ("pythonic", "[add(5)]", "[add(5)]", []),
        ("pythonic", "[add(a=NaN)]", "[add(a=NaN)]", []),
        ("pythonic", '[get_weather("Oslo")]', '[get_weather("Oslo")]', []),
        ("pythonic", "[add(a=1), add(5)]", ", add(5)]", [ADD]),
        ("pythonic", "[add(a=1), add(b='x", "", [ADD]),
        ("pythonic", "[add (a=1)]", "", [ADD]),
        ("qwen3_coder", _coder("get_weather", x='["</parameter>", "\\"</parameter>"]', city="a"), "",
         [("get_weather", '{"x": ["</parameter>", "\\"</parameter>"], "city": "a"}')]),
        ("qwen3_coder", _coder("get_weather", x='["a', city='b"]'), "",
         [("get_weather", '{"x": "[\\"a", "city": "b\\"]"}')]),
        ("glm45", _glm("get_weather", x='{"a": "</arg_value>"}', when="</arg"), "",
         [("get_weather", '{"x": {"a": "</arg_value>"}, "when": "</arg"}')]),
        ("glm45", "<tool_call>get_weather<arg_key>x</arg_key><arg_value>[\"a</arg_value><arg_key>when</arg_key>"
         "<arg_value>b\"</arg_value></tool_call>", "", [("get_weather", '{"x": "[\\"a", "when": "b\\""}')]),
        ("glm45", _glm("get_weather", when="5"), "", [("get_weather", '{"when": "5"}')]),
        ("qwen3_coder", _coder("get_weather", when=" None "), "", [("get_weather", '{"when": null}')]),
        ("qwen3_coder", _coder("get_weather", place="5", level="5"), "",
         [("get_weather", '{"place": "5", "level": 5}')]),
        ("qwen3_coder", "use <function=foo> here", "use <function=foo> here", []),
        ("qwen3_coder", "<tool_call>\n<function=other>\n</function>\n</tool_call>", "", [("other", "{}")]),
        ("glm45", "<tool_call>word\nand more", "<tool_call>word\nand more", []),
        ("glm45", "<tool_call>other\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", "",
         [("other", '{"a": "1"}')]),
        ("glm45", "<tool_call>add <arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", "",
         [("add", '{"a": "1"}')]),
        ("mistral", f"[TOOL_CALLS][\t{OBJECT}]", "", [ADD]),
        ("mistral", f"[TOOL_CALLS]\n[\r\n{OBJECT}]", "", [ADD]),
        ("mistral", '[TOOL_CALLS]add\n[ARGS] {"a": 1}', "", [ADD]),
        ("mistral", f'[TOOL_CALLS]add[CALL_ID]{"a" * 64}[ARGS]{{"a": 1}}', "", [ADD]),
        ("mistral", f'[TOOL_CALLS]add[CALL_ID]{"a" * 65}[ARGS]{{}}', f'[TOOL_CALLS]add[CALL_ID]{"a" * 65}[ARGS]{{}}',
         []),
        ("pythonic", "[print(1)]", "[print(1)]", []),
        ("pythonic", "I call [add(a=1)]", "I call [add(a=1)]", []),
        ("pythonic", "[1] says", "[1] says", []),
        ("pythonic", " [add", " [add", []),
    ],
)  # fmt: skip
def test_calls(name: str, text: str, expected_content: str, expected_calls: list[tuple[str, str]]) -> None:
    events = _parse(name, text)
    assert calls(events) == expected_calls
    assert content(events) == expected_content


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45"])
def test_strings_come_as_they_are_written(name: str) -> None:
    parser = READERS[name].parser(NAMES, PARAMETERS)
    head = {"qwen3_coder": "<function=get_weather>\n<parameter=city>\n", "glm45":
            "get_weather\n<arg_key>city</arg_key>\n<arg_value>"}[name]  # fmt: skip
    assert parser.add("Hi") == [Content("Hi")]
    assert parser.add("\n<tool_call>\n") == []
    begun = parser.add(head)
    assert begun[0] == CallBegun(0, "get_weather")
    assert parser.add("Os") == [Arguments(0, "Os")]
    assert parser.add('lo"') == [Arguments(0, 'lo\\"')]


def test_json_comes_as_it_is_written() -> None:
    parser = READERS["mistral"].parser(NAMES)
    assert [parser.add(piece) for piece in ("[TOOL_CALLS]add", '[ARGS]{"a', '": 1', "}")] == [
        [], [CallBegun(0, "add"), Arguments(0, '{"a')], [Arguments(0, '": 1')], [Arguments(0, "}"), CallEnded(0)]
    ]  # fmt: skip


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_STRINGS = st.text(st.characters(exclude_categories=("Cs",)), max_size=10).filter(lambda text: "<" not in text)


def _written(name: str, function: str, arguments: dict[str, Any]) -> str:
    """A call as the model family writes it."""
    tags = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    match name:
        case "qwen3_coder":
            return _coder(function, **tags)
        case "glm45":
            return _glm(function, **tags)
        case "deepseek_v3":
            return f"{CALLS}{CALL}function{SEP}{function}\n```json\n{json.dumps(arguments)}\n```{CALL_END}{CALLS_END}"
        case "deepseek_v31":
            return f"{CALLS}{CALL}{function}{SEP}{json.dumps(arguments)}{CALL_END}{CALLS_END}"
        case "mistral":
            return f"[TOOL_CALLS][{json.dumps({'name': function, 'arguments': arguments})}]"
        case _:
            return f"[{function}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"


@pytest.mark.parametrize("name", READERS)
@given(city=_STRINGS, x=st.lists(_VALUES, max_size=2), days=st.integers(), borders=BORDERS)
@settings(max_examples=120, deadline=None)
def test_values_come_back(name: str, city: str, x: list[Any], days: int, borders: list[int]) -> None:
    arguments = {"city": city, "x": x, "days": days}
    text = _written(name, "get_weather", arguments)
    events = check_cuts(lambda: READERS[name].parser(NAMES, PARAMETERS), text, borders)
    ((called, found),) = calls(events)
    assert (called, json.loads(found)) == ("get_weather", arguments)
    assert content(events) == ""


_FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=add>", "<function=", "</function>", "<parameter=city>", "</parameter>",
    "add", "get_weather", "\n", " ", "<arg_key>", "city", "</arg_key>", "<arg_value>", "</arg_value>",
    *DEEPSEEK_MARKERS,
    "function", "```json\n", "\n```", '{"a": 1}', "{", "}", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", OBJECT, "[", "]",
    ",",
    "(", ")", "=", "'", '"', "\\", "1", "<|python_start|>", "<|python_end|>", "x",
]  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@given(parts=st.lists(st.sampled_from(_FRAGMENTS), max_size=14), borders=BORDERS)
@settings(max_examples=500, deadline=None)
def test_any_text_is_read_alike_however_it_is_cut(name: str, parts: list[str], borders: list[int]) -> None:
    text = "".join(parts)
    events = check_cuts(lambda: READERS[name].parser(NAMES, PARAMETERS), text, borders)
    if not calls(events):
        assert content(events) == text, "nothing is lost"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<tool_call>\n<function=example>\n<parameter=a>", "qwen3_coder"),
        ("<tool_call>{function-name}\n<arg_key>", "glm45"),
        (f"{{{{ '{CALLS}{CALL}' + type + '```json' }}}}", "deepseek_v3"),
        (f"{{{{ '{CALLS}{CALL}' }}}}", "deepseek_v31"),
        ("{{ '[TOOL_CALLS][' }}", "mistral"),
        ("put it in the format of [func_name1(params_name1=params_value1)]", "pythonic"),
    ],
)
def test_the_template_shows_the_form(template: str, name: str) -> None:
    assert detect_tool_parser(template) is TOOL_PARSERS[name]


def test_the_template_shows_how_mistrals_calls_are_written() -> None:
    newer, older = detect_tool_parser("[TOOL_CALLS]NAME[ARGS]"), detect_tool_parser("[TOOL_CALLS][")
    assert newer is not None
    assert older is not None
    assert (newer.name, newer.written, older.written) == ("mistral", "named", "list")
    assert as_taught(TOOL_PARSERS["mistral"], "[ARGS]") is newer
    assert as_taught(TOOL_PARSERS["hermes"], "[ARGS]") is TOOL_PARSERS["hermes"]


@pytest.mark.parametrize(
    ("name", "begin"),
    [("qwen3_coder", "a"), ("qwen3_coder", "<tool_call>"), ("glm45", _glm("add")), ("deepseek_v3", CALLS),
     ("mistral", f"[TOOL_CALLS][{OBJECT},"), ("pythonic", ""), ("pythonic", "[add(a=1)]")],
)  # fmt: skip
def test_white_space_without_end_is_read_once(name: str, begin: str) -> None:
    parser = READERS[name].parser(NAMES)
    parser.add(begin)
    started = time.thread_time()
    for _ in range(8_000):
        assert parser.add(" " * 64) == []
    assert time.thread_time() - started < 2  # about 0.01


@pytest.mark.parametrize(
    ("name", "begin"),
    [("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {"a": "'),
     ("mistral", '[TOOL_CALLS][{"arguments": {"a": "'), ("mistral", "[TOOL_CALLS]add[CALL_ID]"),
     ("pythonic", '[add(a="'), ("pythonic", "[add(b=1, a=[1, "),
     ("qwen3_coder", "<tool_call><function=get_weather><parameter=days>")],
)  # fmt: skip
def test_what_was_read_is_not_copied_with_each_piece(name: str, begin: str) -> None:
    """What the parser joins or keeps while it waits stays short, however much has come."""
    parser = READERS[name].parser(NAMES, PARAMETERS)
    parser.add(begin)
    for _ in range(1_000):
        parser.add("12345678")
    assert len(parser._text) < 200  # type: ignore[attr-defined]
