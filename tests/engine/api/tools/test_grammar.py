"""Grammars of outputs with calls and reasoning: whatever a model samples under their masks, the parser reads it and the
arguments follow their schema."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from engine_support.pieces import calls, content, parsed, reasoning
from engine_support.random_walk import GrammarEngine

from blade_llm.api.tools.grammar import output_structure
from blade_llm.api.tools.requests import FunctionDefinition, FunctionName, NamedToolChoice, ToolChoice
from blade_llm.api.tools.use import read_tools
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.text.events import Event
from blade_llm.text.output_parser import OutputParsing
from blade_llm.text.reasoning import DEEPSEEK_V3, GLM45, MISTRAL, QWEN3, ReasoningForm
from blade_llm.text.tool_parsers import HERMES, LLAMA3_JSON, TOOL_PARSERS, CallForm, as_taught
from blade_llm.text.tool_parsers.named import DEEPSEEK_MARKERS

GUIDED = {**TOOL_PARSERS, "mistral, names": as_taught(TOOL_PARSERS["mistral"], "[ARGS]")}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["\u00b0C", 'say "F"\n']},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "maxItems": 2},
    },
    "required": ["unit"],
    "additionalProperties": False,
    "$defs": {"day": {"type": "integer", "minimum": 1, "maximum": 31}},
}
WEATHER = FunctionDefinition(name="get_weather", parameters=PARAMETERS, strict=True)
ON: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
FLAG = FunctionDefinition(name="flag", parameters=ON)
SCHEMAS = {"get_weather": PARAMETERS, "flag": ON}
NAMED = NamedToolChoice(type="function", function=FunctionName(name="get_weather"))


@pytest.fixture(scope="module", params=[True, False], ids=["marker tokens", "spelled markers"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GrammarEngine:
    return GrammarEngine(tmp_path_factory.mktemp("model") / "model", markers=request.param)


def _grammar_spec(
    engine: GrammarEngine,
    form: CallForm | None,
    choice: ToolChoice | None,
    *,
    parallel: bool = True,
    think: bool = False,
    inside: bool = False,
    content: GrammarSpec | None = None,
) -> tuple[GrammarSpec | None, OutputParsing]:
    use = None if form is None else read_tools([WEATHER, FLAG], choice, parallel=parallel)
    parsing = OutputParsing(
        calls=form,
        names=frozenset() if use is None else use.names,
        parameters=SCHEMAS,
        reasoning=QWEN3 if think else None,
        inside=inside,
    )
    return output_structure(content, parsing, use, engine.tokenizer), parsing


def _check_calls(events: Sequence[Event], *, loosely: Sequence[str] = ()) -> list[tuple[str, str]]:
    found = calls(events)
    for name, arguments in found:
        value = json.loads(arguments)
        if name in loosely:
            assert isinstance(value, dict)
        else:
            jsonschema.validate(value, SCHEMAS[name])
    return found


@pytest.mark.parametrize("think", [False, True])
@pytest.mark.parametrize("form", GUIDED.values(), ids=GUIDED)
def test_required_calls_follow_their_schemas(engine: GrammarEngine, form: CallForm, think: bool) -> None:
    structure, parsing = _grammar_spec(engine, form, "required", think=think)
    assert structure is not None
    seen = set()
    for seed in range(12):
        text = engine.sample(structure, seed)
        if text is not None:
            events = parsed(parsing.parser(), [text])
            found = _check_calls(events)
            assert found
            assert content(events) == ""
            seen |= {name for name, _ in found}
    assert seen == {"get_weather", "flag"}


@pytest.mark.parametrize("form", GUIDED.values(), ids=GUIDED)
def test_a_named_function_is_called_once_and_so_is_one_without_parallel_calls(
    engine: GrammarEngine, form: CallForm
) -> None:
    cases: list[tuple[ToolChoice, bool]] = [(NAMED, True), ("required", False)]
    for choice, parallel in cases:
        structure, parsing = _grammar_spec(engine, form, choice, parallel=parallel)
        assert structure is not None
        for seed in range(6):
            text = engine.sample(structure, seed)
            assert text is not None
            ((name, _),) = _check_calls(parsed(parsing.parser(), [text]))
            assert choice != NAMED or name == "get_weather"


_A = {"a": {"type": "integer"}}


@pytest.mark.parametrize(
    ("parameters", "closed"),
    [
        (None, True),
        ({"properties": _A}, True),
        ({"type": "object", "properties": _A, "required": ["a"], "description": "d"}, True),
        ({"type": "object"}, False),
        ({"properties": _A, "required": ["b"]}, False),
        ({"properties": _A, "additionalProperties": {"type": "string"}}, False),
        ({"properties": _A, "patternProperties": {"^x": {}}}, False),
        ({"properties": _A, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, False),
        ({"properties": _A, "$ref": "#/$defs/more", "$defs": {"more": {"properties": {"b": {}}}}}, False),
    ],
)
def test_guided_arguments_are_those_the_schema_names(parameters: dict[str, Any] | None, closed: bool) -> None:
    function = FunctionDefinition(name="f", parameters=parameters)
    use = read_tools([function], "required")
    free = read_tools([function], "auto")
    assert use is not None
    assert free is not None
    schema = use.schema(function)
    assert (schema.get("additionalProperties") is False) is closed
    assert {**schema, "additionalProperties": 0} == {
        "type": "object",
        **(parameters or {"properties": {}}),
        "additionalProperties": 0,
        "x-blade-closed": True,
    }
    assert free.schema(function) == {"type": "object"}


def test_a_model_cannot_invent_arguments(engine: GrammarEngine) -> None:
    inner = {"type": "object", "properties": _A}
    function = FunctionDefinition(name="f", parameters={"type": "object", "properties": {**_A, "o": inner}})
    use = read_tools([function], "required")
    structure = output_structure(None, OutputParsing(calls=HERMES, names=frozenset({"f"})), use, engine.tokenizer)
    assert structure is not None
    call = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
    for arguments in ("{}", '{"a": 1}', '{"o": {"a": 1}}'):
        assert engine.allows(structure, call % arguments), arguments
    for arguments in ('{"a": 1, "x": 2}', '{"o": {"a": 1, "x": 2}}'):
        assert not engine.allows(structure, call % arguments), arguments


@pytest.mark.parametrize(
    ("form", "call"),
    [
        ("pythonic", "[f(o=%s)]"),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=o>\n%s\n</parameter>\n</function>\n</tool_call>"),
        ("glm45", "<tool_call>f\n<arg_key>o</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>"),
    ],
)
@pytest.mark.parametrize("closed", [True, False])
def test_objects_within_arguments_are_closed(engine: GrammarEngine, form: str, call: str, closed: bool) -> None:
    inner = {"type": "object", "properties": _A}
    function = FunctionDefinition(
        name="f", parameters={"type": "object", "properties": {"o": inner}, "required": ["o"]}
    )
    use = read_tools([function], "required")
    assert use is not None
    parsing = OutputParsing(calls=TOOL_PARSERS[form], names=frozenset({"f"}))
    structure = output_structure(None, parsing, replace(use, closed=closed), engine.tokenizer)
    assert structure is not None
    assert engine.allows(structure, call % '{"a": 1}')
    assert engine.allows(structure, call % '{"a": 1, "x": 2}') is not closed


V3, V3_END, CALL, CALL_END, SEP = DEEPSEEK_MARKERS
CALLS = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"unit": "\u00b0C"}}\n</tool_call>',
    "llama3_json": '{"name": "get_weather", "parameters": {"unit": "\u00b0C"}}',
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"unit": "\u00b0C"}}]',
    "mistral, names": '[TOOL_CALLS]get_weather[ARGS]{"unit": "\u00b0C"}',
    "deepseek_v3": f'{V3}{CALL}function{SEP}get_weather\n```json\n{{"unit": "\u00b0C"}}\n```{CALL_END}{V3_END}',
    "deepseek_v31": f'{V3}{CALL}get_weather{SEP}{{"unit": "\u00b0C"}}{CALL_END}{V3_END}',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=unit>\n\u00b0C\n</parameter>\n</function>\n"
    "</tool_call>",
    "glm45": "<tool_call>get_weather\n<arg_key>unit</arg_key>\n<arg_value>\u00b0C</arg_value>\n</tool_call>",
    "pythonic": '[get_weather(unit="\u00b0C")]',
}


def _two(case: str) -> str:
    """Two calls."""
    call = CALLS[case]
    match case:
        case "mistral":
            return call[:-1] + ", " + call.removeprefix("[TOOL_CALLS][")
        case "deepseek_v3" | "deepseek_v31":
            between = "\n" if case == "deepseek_v3" else ""
            return call.removesuffix(V3_END) + between + call.removeprefix(V3)
        case "pythonic":
            return call[:-1] + ", " + call[1:]
        case "mistral, names":
            return call + call
        case "llama3_json":
            return f"{call}; {call}"
        case _:
            return f"{call}\n{call}"


@pytest.mark.parametrize("case", GUIDED)
def test_a_free_choice_leaves_text_free_and_strict_calls_valid(engine: GrammarEngine, case: str) -> None:
    structure, parsing = _grammar_spec(engine, GUIDED[case], "auto")
    assert structure is not None
    call = CALLS[case]
    for text in ["", "Any <text>, {even this", "1 < 2\n\n[x", call, _two(case)]:
        assert engine.allows(structure, text), text
    assert calls(parsed(parsing.parser(), [_two(case)])) == [("get_weather", '{"unit": "\u00b0C"}')] * 2
    assert not engine.allows(structure, call.replace("unit", "city"))
    other = call.replace("get_weather", "other")
    assert not (calls(parsed(parsing.parser(), [other])) and engine.allows(structure, other))
    assert engine.allows(structure, call.replace("get_weather", "flag").replace("unit", "any"))
    for seed in range(12):
        found = engine.sample(structure, seed)
        if found is not None:
            _check_calls(parsed(parsing.parser(), [found]), loosely=["flag"])


@pytest.mark.parametrize("case", GUIDED)
def test_one_call_at_most_without_parallel_calls(engine: GrammarEngine, case: str) -> None:
    for choice in ("auto", "required"):
        structure, _ = _grammar_spec(engine, GUIDED[case], choice, parallel=False)  # type: ignore[arg-type]
        assert structure is not None
        assert engine.allows(structure, CALLS[case])
        assert not engine.allows(structure, _two(case))


def _loose_call(random_: random.Random) -> str:
    """Something that may be taken for a call: keys in any order, white space, escapes, keys nobody requested."""

    def spelled(text: str) -> str:
        return "".join(f"\\u{ord(letter):04x}" if random_.random() < 0.02 else letter for letter in text)

    def space() -> str:
        return random_.choice(["", "", " ", "\n"])

    members = [("name", '"' + spelled(random_.choice(["get_weather", "get_weather", "flag", "other"])) + '"')]
    for _ in range(random_.choice([1, 1, 2])):
        arguments = random_.choice(['{"unit": "\u00b0C"}', '{"unit": "K"}', "{}", '{"on": true}', '"{}"', "null"])
        members.append((random_.choice(["parameters", "arguments"]), arguments))
    if random_.random() < 0.3:
        members.append(("type", '"function"'))
    if random_.random() < 0.5:
        random_.shuffle(members)
    inner = ",".join(
        f'{space()}"{spelled(key)}"{space()}:{random_.choice([" ", space()])}{value}' for key, value in members
    )
    return random_.choice(["", "", "", " ", "\n"]) + "{" + inner + space() + "}"


@pytest.mark.parametrize("parallel", [True, False])
def test_whatever_the_parser_takes_for_a_call_is_valid(engine: GrammarEngine, parallel: bool) -> None:
    """The parser of bare calls is lenient, so what the grammar lets through as text must be no call for it."""
    structure, parsing = _grammar_spec(engine, LLAMA3_JSON, "auto", parallel=parallel)
    assert structure is not None
    random_, read, refused = random.Random(3), 0, 0
    for number in range(150):
        text = _loose_call(random_)
        if number % 3 == 0:
            text += ";" + _loose_call(random_)
        if number % 10 == 0:
            text = CALLS["llama3_json"] + "; " + CALLS["llama3_json"]
        found = calls(parsed(parsing.parser(), [text]))
        read += bool(found)
        if not engine.allows(structure, text):
            refused += 1
            continue
        _check_calls(parsed(parsing.parser(), [text]), loosely=["flag"])
        assert parallel or len(found) <= 1
    assert read > 50
    assert refused > 50
    for text in (
        '{"x": 1, "name": "other"}',
        '{"city": "\u00e9"} and {"name"',
        '{"name": 5, "x": "get_weather"}',
        " {",
    ):
        assert engine.allows(structure, text), text


def test_text_around_calls_of_hermes(engine: GrammarEngine) -> None:
    structure, _ = _grammar_spec(engine, HERMES, "auto")
    single, _ = _grammar_spec(engine, HERMES, "auto", parallel=False)
    assert structure is not None
    assert single is not None
    call = CALLS["hermes"]
    assert engine.allows(structure, f"First <this>: {call}\nthen\n{call}")
    assert engine.allows(single, f"First <this>: {call}")
    assert not engine.allows(single, f"{call}\n{call}")
    assert not engine.allows(structure, "<tool_call> is no text")


@pytest.mark.parametrize("case", GUIDED)
def test_content_with_a_structure_beside_calls(engine: GrammarEngine, case: str) -> None:
    schema = GrammarSpec("json", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
    structure, parsing = _grammar_spec(engine, GUIDED[case], "auto", content=schema)
    assert structure is not None
    assert engine.allows(structure, CALLS[case])
    assert engine.allows(structure, '{"a": 5}')
    assert not engine.allows(structure, "5")
    assert content(parsed(parsing.parser(), ['{"a": 5}'])) == '{"a": 5}'


ONLY_A = '{"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"]}'
CONTENTS = [
    (GrammarSpec("json", ONLY_A), '{"a": 5}', '{"b": 5}'),
    (GrammarSpec("regex", r"a/b\d+(x|)"), "a/b44", "a/b"),
    (GrammarSpec("choice", '["a \\"quoted\\" one", "\u00e9"]'), 'a "quoted" one', "a"),
    (GrammarSpec("grammar", 'start: greet "}"\ngreet: "hi" | WORD\nWORD: /[{a-z]+/\n'), "{hey}", "HEY}"),
]  # fmt: skip


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("structure", "good", "bad"), CONTENTS, ids=[each[0].kind for each in CONTENTS])
def test_a_structure_holds_for_the_content_after_the_reasoning(
    engine: GrammarEngine, structure: GrammarSpec, good: str, bad: str, inside: bool
) -> None:
    wrapped, parsing = _grammar_spec(engine, None, None, think=True, inside=inside, content=structure)
    assert wrapped is not None
    thought = ("" if inside else "<think>") + "\nHm, {<th} or </thi?\n</think>\n\n"
    assert engine.allows(wrapped, thought + good)
    assert not engine.allows(wrapped, thought + bad)
    assert engine.allows(wrapped, good) is not inside
    events = parsed(parsing.parser(), [thought + good])
    assert (reasoning(events), content(events)) == ("Hm, {<th} or </thi?", good)


@pytest.mark.parametrize(
    ("form", "thought"),
    [(QWEN3, "<think>Hm.</think>\n\n"), (GLM45, "\n<think>Hm.</think>\n"), (GLM45, "<think></think>\n"),
     (DEEPSEEK_V3, "<think>Hm.</think>"), (MISTRAL, "[THINK]Hm.[/THINK]")],
)  # fmt: skip
def test_reasoning_is_written_as_each_family_does(engine: GrammarEngine, form: ReasoningForm, thought: str) -> None:
    for calls_of in GUIDED.values():
        use = read_tools([WEATHER, FLAG], "required")
        parsing = OutputParsing(calls=calls_of, names=frozenset(SCHEMAS), parameters=SCHEMAS, reasoning=form)
        structure = output_structure(None, parsing, use, engine.tokenizer)
        assert structure is not None
        case = next(case for case, known in GUIDED.items() if known is calls_of)
        assert engine.allows(structure, thought + CALLS[case]), case
        events = parsed(parsing.parser(), [thought + CALLS[case]])
        assert reasoning(events) == ("Hm." if "Hm" in thought else "")
        assert calls(events) == [("get_weather", '{"unit": "\u00b0C"}')]


def test_what_requests_nothing_is_not_guided(engine: GrammarEngine) -> None:
    use = read_tools([FLAG], "auto")
    parsing = OutputParsing(calls=LLAMA3_JSON, names=frozenset({"flag"}), reasoning=QWEN3)
    assert output_structure(None, parsing, use, engine.tokenizer) is None
    free = GrammarSpec("regex", "a")
    assert output_structure(free, OutputParsing(), None, engine.tokenizer) is free
