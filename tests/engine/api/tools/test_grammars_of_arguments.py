"""Arguments that are no JSON objects: whatever a random walk through the grammar writes, the family's parser reads
arguments out of it that follow the schema, however the text is cut."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from engine_support.pieces import calls, check_cuts, content
from engine_support.random_walk import GrammarEngine

from blade_llm.api.tools.grammar import ArgumentsError, output_structure
from blade_llm.api.tools.requests import FunctionDefinition
from blade_llm.api.tools.use import read_tools
from blade_llm.text.output_parser import OutputParsing
from blade_llm.text.tool_parsers import TOOL_PARSERS

FORMS = ("qwen3_coder", "glm45", "pythonic")
SCHEMAS: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "text of a length": {"type": "string", "minLength": 2, "maxLength": 5},
    "a date": {"type": "string", "format": "date"},
    "a uuid": {"type": "string", "format": "uuid"},
    "an address": {"type": "string", "format": "ipv4"},
    "an expression": {"type": "string", "pattern": "^[a-c]{1,3}/[0-9]+$", "maxLength": 9},
    "an expression within": {"type": "string", "pattern": "b[0-9]", "maxLength": 12},
    "choices": {"enum": ["a", "a b\n", '"q"', "null", "5", "", "<x>", "{"]},
    "text or null": {"type": ["string", "null"], "maxLength": 6},
    "optional text": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}], "default": None},
    "optional choice": {"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "null"}]},
    "text or number": {"type": ["string", "integer"], "maxLength": 5},
    "referred": {"$ref": "#/$defs/unit"},
    "whole": {"type": "integer", "minimum": -3, "maximum": 400},
    "number": {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
    "flag": {"type": "boolean"},
    "nothing": {"type": "null"},
    "flags": {"type": "array", "items": {"type": ["boolean", "null"]}, "minItems": 1, "maxItems": 3},
    "texts": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
    "exactly two": {"type": "array", "items": {"enum": [True, 1.5, "x", None]}, "minItems": 2, "maxItems": 2},
    "object": {
        "type": "object",
        "properties": {"a b": {"type": "boolean"}, "n": {"type": "integer"}, "deep": {"$ref": "#/$defs/node"}},
        "required": ["n"],
        "additionalProperties": False,
    },
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 1},
    "map of flags": {"type": "object", "additionalProperties": {"type": "boolean"}},
    "tuple": {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": "x"}], "items": False, "minItems": 2},
    "recursive": {"$ref": "#/$defs/node"},
    "anything": {},
    "any": {"description": "whatever"},
    "all of": {"allOf": [{"type": "string", "maxLength": 3}, {"pattern": "^[xy]*$"}]},
}
DEFS = {
    "unit": {"type": "string", "enum": ["C", "F", "None"]},
    "node": {
        "type": "object",
        "properties": {"value": {"type": ["boolean", "string"], "maxLength": 3}, "next": {"$ref": "#/$defs/node"}},
        "required": ["value"],
        "additionalProperties": False,
    },
}
TRAPS = [
    "\n", '"', "'", "\\", "</parameter>", "\n</parameter>\n", "</arg_value>", "</tool_call>", "null", "None", ")", ", ",
    "<tool_call>", "<function=", "<parameter=", "[f(", "]", "}", "<arg_key>", "#", "\u00e9", "\u2028",
]  # fmt: skip
"""Texts that a form could mistake for its own, tried wherever the grammar takes them."""
OPENINGS = {"qwen3_coder": "Hm:\n<tool_call>\n<function=f>\n", "glm45": "[<tool_call>f\n", "pythonic": "[f("}


@pytest.fixture(scope="module", params=[True, False], ids=["marker tokens", "spelled markers"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GrammarEngine:
    return GrammarEngine(tmp_path_factory.mktemp("model") / "model", markers=request.param)


def _parameters(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"first": {"type": "boolean"}, "x": schema, "last": {"type": "integer"}},
            "required": ["x"], "additionalProperties": False, "$defs": DEFS, **more}  # fmt: skip


def _walks(
    engine: GrammarEngine,
    form: str,
    parameters: dict[str, Any],
    num: int,
    mode: str = "required",
    begin: str = "",
) -> list[dict[str, Any]]:
    """The arguments of all calls of random outputs, checked."""
    function = FunctionDefinition(name="f", parameters=parameters, strict=True)
    use = read_tools([function, FunctionDefinition(name="f_2", strict=True)], mode)
    assert use is not None
    parsing = OutputParsing(calls=TOOL_PARSERS[form], names=use.names, parameters={"f": parameters, "f_2": None})
    structure = output_structure(None, parsing, use, engine.tokenizer)
    assert structure is not None
    found = []
    for seed in range(num):
        text = engine.sample(structure, seed, traps=TRAPS, begin=begin)
        if text is None:
            continue
        events = check_cuts(parsing.parser, text, [random.Random(seed).randrange(400) for _ in range(8)])
        assert mode == "auto" or content(events) == "", text
        for name, arguments in calls(events):
            value = json.loads(arguments)
            jsonschema.validate(value, parameters if name == "f" else {"maxProperties": 0})
            if name == "f":
                found.append(value)
    return found


@pytest.mark.parametrize(
    ("engine", "form", "name"),
    [
        pytest.param(markers, form, name, marks=[] if (number + place) % 2 == markers else pytest.mark.soak)
        for markers in (True, False)
        for number, name in enumerate(SCHEMAS)
        for place, form in enumerate(FORMS)
    ],
    indirect=["engine"],
    scope="module",
)
def test_what_the_grammar_writes_follows_the_schema(engine: GrammarEngine, form: str, name: str) -> None:
    """Each schema in each form, by one of the engines; by both in the long tests."""
    assert _walks(engine, form, _parameters(SCHEMAS[name]), 8)


@pytest.mark.parametrize("form", FORMS)
def test_all_kinds_of_arguments_at_once(engine: GrammarEngine, form: str) -> None:
    properties = {f"key_{index}": schema for index, schema in enumerate(SCHEMAS.values())}
    parameters = {"type": "object", "properties": properties, "additionalProperties": False, "$defs": DEFS}
    found = _walks(engine, form, parameters, 20)
    assert len({key for arguments in found for key in arguments}) > 6


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("others", [True, {}, {"type": "string"}, {"type": ["boolean", "null"]}], ids=str)
def test_arguments_that_the_schema_does_not_name(engine: GrammarEngine, form: str, others: Any) -> None:
    parameters = _parameters({"enum": ["a", "b"]}, additionalProperties=others)
    found = _walks(engine, form, parameters, 24)
    assert {key for arguments in found for key in arguments} - {"first", "x", "last"}


@pytest.mark.parametrize("form", FORMS)
def test_text_beside_strict_calls_holds_none(engine: GrammarEngine, form: str) -> None:
    assert _walks(engine, form, _parameters({"type": "string"}), 20, "auto", OPENINGS[form])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {}]}, "#/anyOf"),
        ({"properties": {"a": {}}, "patternProperties": {"^x": {}}}, "#/patternProperties"),
        ({"properties": {"a": {}, "b": {}}, "minProperties": 1}, "#/minProperties"),
        ({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "array", "prefixItems": [{}]}}}, "leads out"),
        ({"properties": {"a": False}, "required": ["a"]}, "required, but false"),
        ({"properties": {}, "required": ["a"], "additionalProperties": False}, "'a' is not among the properties"),
    ],
)
def test_what_cannot_be_written_so_is_refused_by_name(
    engine: GrammarEngine, form: str, parameters: dict[str, Any], says: str
) -> None:
    use = read_tools([FunctionDefinition(name="f", parameters=parameters)], "required")
    parsing = OutputParsing(calls=TOOL_PARSERS[form], names=frozenset("f"))
    with pytest.raises(ArgumentsError, match=says) as caught:
        output_structure(None, parsing, use, engine.tokenizer)
    assert caught.value.function == "f"


@pytest.mark.parametrize(
    ("form", "key"), [("qwen3_coder", "a>b"), ("glm45", "</arg_key>"), ("pythonic", "a-b"), ("glm45", "")]
)
def test_names_that_cannot_be_written_are_refused(engine: GrammarEngine, form: str, key: str) -> None:
    use = read_tools([FunctionDefinition(name="f", parameters={"properties": {key: {}}})], "required")
    with pytest.raises(ArgumentsError, match="rename it"):
        output_structure(None, OutputParsing(calls=TOOL_PARSERS[form], names=frozenset("f")), use, engine.tokenizer)


@pytest.mark.parametrize("pattern", ["^a|b$", "a^", "(^a)", "a$b"])
def test_anchors_inside_expressions_are_refused(engine: GrammarEngine, pattern: str) -> None:
    parameters = {"properties": {"a": {"type": "string", "pattern": pattern}}}
    use = read_tools([FunctionDefinition(name="f", parameters=parameters)], "required")
    parsing = OutputParsing(calls=TOOL_PARSERS["glm45"], names=frozenset("f"))
    with pytest.raises(ArgumentsError, match="#/properties/a/pattern"):
        output_structure(None, parsing, use, engine.tokenizer)


@pytest.mark.parametrize("form", FORMS)
def test_many_functions_fit_into_one_grammar(engine: GrammarEngine, form: str) -> None:
    properties = {f"key_{index}": {"type": "string"} for index in range(14)}
    functions = [FunctionDefinition(name=f"f_{index}", parameters={"properties": properties, "required": ["key_0"]})
                 for index in range(100)]  # fmt: skip
    use = read_tools(functions, "required")
    assert use is not None
    structure = output_structure(None, OutputParsing(calls=TOOL_PARSERS[form], names=use.names), use, engine.tokenizer)
    assert structure is not None
    engine.start(structure)
