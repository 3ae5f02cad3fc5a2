"""Schemas are clients': what a grammar of calls costs to build is bounded, whatever refers to what."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support.random_walk import GrammarEngine

from blade_llm.api.tools.grammar import ArgumentsError, output_structure
from blade_llm.api.tools.grammar.rules import Rules
from blade_llm.api.tools.requests import FunctionDefinition
from blade_llm.api.tools.use import read_tools
from blade_llm.sampling.guided import limits
from blade_llm.text.output_parser import OutputParsing
from blade_llm.text.tool_parsers import TOOL_PARSERS
from blade_llm.text.tool_parsers.argument_schemas import Steps, kinds, resolved

FORMS = ("qwen3_coder", "glm45", "pythonic")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> GrammarEngine:
    return GrammarEngine(tmp_path_factory.mktemp("model") / "model", markers=True)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The characters of each rule that is asked for."""
    found: list[int] = []
    rule = Rules.rule

    def counted(rules: Rules, name: str, expression: str) -> str:
        found.append(len(expression))
        return rule(rules, name, expression)

    monkeypatch.setattr(Rules, "rule", counted)
    return found


def _built(engine: GrammarEngine, form: str, *parameters: dict[str, Any]) -> str:
    functions = [FunctionDefinition(name=f"f_{index}", parameters=each) for index, each in enumerate(parameters)]
    use = read_tools(functions, "required")
    assert use is not None
    structure = output_structure(None, OutputParsing(calls=TOOL_PARSERS[form], names=use.names), use, engine.tokenizer)
    assert structure is not None
    return structure.value


def _refused(engine: GrammarEngine, form: str, *parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentsError, match=says) as caught:
        _built(engine, form, *parameters)
    assert caught.value.function.startswith("f_")


def _multiplied(keyword: str, ways: int = 7, levels: int = 7) -> dict[str, Any]:
    """Definitions of which each refers several times to the next."""
    found: dict[str, Any] = {
        f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}] * ways} for level in range(levels)
    }
    return {**found, f"d{levels}": {"type": "string"}}


def test_lists_in_lists_are_written_once(engine: GrammarEngine) -> None:
    schema: dict[str, Any] = {"type": "string", "description": "what is in it"}
    for _ in range(18):
        schema = {"type": "array", "items": schema, "minItems": 1}
    assert len(_built(engine, "pythonic", {"properties": {"x": schema}})) < 4_000


def test_types_named_twice_are_written_once(engine: GrammarEngine) -> None:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(6):
        schema = {"type": ["array"] * 8, "items": schema}
    assert len(_built(engine, "pythonic", {"properties": {"x": schema}})) < 2_000


@pytest.mark.parametrize("keyword", ["allOf", "anyOf"])
def test_references_that_multiply_are_not_all_followed(engine: GrammarEngine, keyword: str) -> None:
    root = {"$defs": _multiplied(keyword)}
    steps = Steps()
    assert kinds({"$ref": "#/$defs/d0"}, root, steps) is None
    assert steps.taken <= 1_001
    parameters = {**root, "properties": {"x": {"type": "string", "$ref": "#/$defs/d0"}}}
    for form in ("qwen3_coder", "glm45"):
        built = _built(engine, form, parameters)  # as JSON, which is what the reader takes it for
        assert "%json" in built


def test_many_arguments_that_multiply_are_refused(engine: GrammarEngine) -> None:
    properties = {f"x{index}": {"$ref": "#/$defs/d0"} for index in range(400)}
    parameters = {"$defs": _multiplied("allOf", ways=5, levels=3), "properties": properties}
    _refused(engine, "glm45", parameters, says="too often")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("schema", [{"type": "string", "maxLength": 1}, {"type": "integer", "description": "n" * 99}])
def test_what_is_refused_is_not_built_first(
    engine: GrammarEngine, made: list[int], form: str, schema: dict[str, Any]
) -> None:
    properties = {f"key_{index}": schema for index in range(1_000)}
    required = [*properties][:1]
    functions = [{"properties": properties, "required": required}] * 128
    _refused(engine, form, *functions, says="offer fewer functions")
    assert len(made) <= 2 * limits.MAX_RULES
    assert sum(made) <= 3 * limits.MAX_CHARACTERS["grammar"]


def test_rules_that_are_dropped_count_too(engine: GrammarEngine, made: list[int]) -> None:
    """Each argument turns out to be impossible in Python after many rules were made."""
    cases: list[dict[str, Any]] = [{"$ref": f"#/$defs/d{index}"} for index in range(100)] + [{"not": {}}]
    parameters = {
        "$defs": {f"d{index}": {"const": index} for index in range(100)},
        "properties": {f"x{index}": {"anyOf": cases} for index in range(1_000)},
    }
    _refused(engine, "pythonic", parameters, says="offer fewer functions")
    assert len(made) <= 2 * limits.MAX_RULES + 1


@pytest.mark.parametrize("form", FORMS)
def test_definitions_are_not_repeated_without_limit(engine: GrammarEngine, made: list[int], form: str) -> None:
    unit = {"type": "array", "prefixItems": [{"enum": ["x" * 999] * 60}]}
    properties = {f"x{index}": {"$ref": "#/$defs/unit"} for index in range(1_000)}
    _refused(engine, form, {"$defs": {"unit": unit}, "properties": properties}, says="characters")
    assert sum(made) <= 3 * limits.MAX_CHARACTERS["grammar"]


def test_a_long_chain_of_references_is_refused(engine: GrammarEngine) -> None:
    chain: dict[str, Any] = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(1_500)}
    parameters = {"$defs": {**chain, "d1500": {}}, "properties": {"x": {"$ref": "#/$defs/d0"}}}
    _refused(engine, "pythonic", parameters, says="nested too deeply|rules of a grammar")


@pytest.mark.parametrize(
    ("schema", "kept", "dropped"),
    [
        ({"type": "integer", "enum": [True, 1, 1.5, 2.0, "x"]}, ["1", "2.0"], ["True", "1.5", '\\"x\\"']),
        ({"type": "number", "enum": [False, 3, 1.5]}, ["3", "1.5"], ["False"]),
        ({"type": ["string", "null"], "enum": [None, 7]}, ["None"], ["7"]),
        ({"type": "boolean", "enum": [True, 0]}, ["True"], ["0"]),
    ],
)
def test_values_of_another_type_are_left_out(
    engine: GrammarEngine, schema: dict[str, Any], kept: list[str], dropped: list[str]
) -> None:
    grammar = _built(engine, "pythonic", {"properties": {"x": schema}, "required": ["x"]})
    assert all(f'"{value}"' in grammar for value in kept)
    assert not any(f'"{value}"' in grammar for value in dropped)


def test_a_type_that_no_value_has_is_left_to_json(engine: GrammarEngine) -> None:
    assert "%json" in _built(engine, "pythonic", {"properties": {"x": {"type": "integer", "const": True}}})


@pytest.mark.parametrize("form", ["qwen3_coder", "glm45"])
def test_lengths_that_contradict_are_refused_by_name(engine: GrammarEngine, form: str) -> None:
    parameters = {"properties": {"x": {"type": "string", "minLength": 5, "maxLength": 2}}}
    _refused(engine, form, parameters, says="#/properties/x: minLength 5 is more than maxLength 2")


@pytest.mark.parametrize("reference", ["#/list/" + "9" * 5_000, "#/" + "a" * 9_000])
def test_references_that_name_nothing_sensible_are_none(reference: str) -> None:
    assert resolved({"list": [1], "a": {}, "a" * 9_000: {}}, reference) is None
