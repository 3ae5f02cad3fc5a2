"""Structural tags in both forms: the outputs they allow, and those they do not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engine_support.random_walk import GrammarEngine

from blade_llm.api.common.errors import ApiError
from blade_llm.api.common.fields import parse
from blade_llm.api.generation.requests import CompletionRequest
from blade_llm.api.generation.structured_outputs import StructureError, requested_structure, validated_structure
from blade_llm.api.tools.grammar import tag_writer
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.validation import Validator

NUMBER: dict[str, Any] = {"type": "json_schema", "json_schema": {"type": "integer", "minimum": 0, "maximum": 99}}
OLD: dict[str, Any] = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<function=f>", "schema": {"type": "integer"}, "end": "</function>"},
        {"begin": "<function=g>", "schema": {"enum": ["x"]}, "end": "</function>"},
        {"begin": "<tool_call>", "schema": {"type": "boolean"}, "end": "</tool_call>"},
    ],
    "triggers": ["<function=", "<tool_call>"],
}
TAGS = [
    {"type": "tag", "begin": "<a>", "content": NUMBER, "end": "</a>"},
    {"type": "tag", "begin": "<b>", "content": {"type": "any_text"}, "end": ["</b>", "<stop>"]},
]


@pytest.fixture(scope="module", params=[True, False], ids=["marker tokens", "spelled markers"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GrammarEngine:
    return GrammarEngine(tmp_path_factory.mktemp("model") / "model", markers=request.param)


def _spec(engine: GrammarEngine, tag: dict[str, Any]) -> GrammarSpec:
    return GrammarSpec("grammar", tag_writer(engine.tokenizer)(tag))


@pytest.mark.parametrize(
    ("form", "allowed", "others"),
    [
        ({"type": "const_string", "value": "a<tool_call>b"}, ["a<tool_call>b"], ["a", "ab"]),
        (NUMBER, ["7"], ["100", "x"]),
        ({"type": "regex", "pattern": "[a-c]+"}, ["abc"], ["", "d"]),
        ({"type": "grammar", "grammar": 'root ::= "(" root ")" | "x"'}, ["((x))"], ["(x"]),
        ({"type": "grammar", "grammar": 'start: "(" start ")" | "x"'}, ["((x))"], ["(x"]),
        ({"type": "any_text"}, ["", "any <a>"], []),
        ({"type": "any_text", "excludes": ["<a>"]}, ["", "any <b>"], ["any <a>"]),
        ({"type": "sequence", "elements": [NUMBER, {"type": "const_string", "value": ";"}, TAGS[1]]},
         ["5;<b>x</b>", "5;<b><stop>"], ["5;<b>", "<b></b>"]),
        ({"type": "or", "elements": [TAGS[0], {"type": "const_string", "value": "no"}]}, ["<a>5</a>", "no"], ["5"]),
        ({"type": "sequence", "elements": [{"type": "optional", "content": TAGS[0]}, NUMBER]},
         ["5", "<a>4</a>5"], [""]),
        ({"type": "star", "content": TAGS[0]}, ["", "<a>4</a><a>5</a>"], ["<a>"]),
        ({"type": "plus", "content": TAGS[0]}, ["<a>4</a>", "<a>4</a><a>5</a>"], [""]),
        ({"type": "tag", "begin": "<x>", "content": {"type": "regex", "pattern": ".*"}, "end": "</x>"},
         ["<x>a</x>", "<x></x></x>"], ["<x>a"]),
        ({"type": "tag", "begin": "<tool_call>", "content": {"type": "any_text"}, "end": "</tool_call>"},
         ["<tool_call>any <text></tool_call>"], ["<tool_call>", "any</tool_call>"]),
        ({"type": "triggered_tags", "triggers": ["<a", "<b>"], "tags": TAGS},
         ["", "text", "t <a>5</a> u <b>v</b>", "<a>5</a><a>6</a>"], ["<a>x</a>", "t <a", "<ab>"]),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": TAGS, "at_least_one": True},
         ["<a>5</a> u <b>v<stop> w"], ["", "t <a>5</a>"]),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": TAGS, "stop_after_first": True},
         ["", "t", "t <b>v<stop>"], ["<a>5</a> u"]),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": TAGS, "stop_after_first": True, "at_least_one": True},
         ["<a>5</a>"], ["", "t", "t <a>5</a>", "<a>5</a> u"]),
        ({"type": "tag", "begin": "<t>", "content": {"type": "triggered_tags", "triggers": ["<a"], "tags": TAGS[:1]},
          "end": "</t>"}, ["<t></t>", "<t>x <a>5</a> y</t>"], ["<t>x <a>5</a> y", "<t><a></t>"]),
        ({"type": "tags_with_separator", "tags": TAGS, "separator": ", "},
         ["", "<a>5</a>, <b>x</b>"], ["<a>5</a><b>x</b>", "<a>5</a>, "]),
        ({"type": "tags_with_separator", "tags": TAGS[:1], "separator": ",", "at_least_one": True,
          "stop_after_first": True}, ["<a>5</a>"], ["", "<a>5</a>,<a>5</a>"]),
    ],
)  # fmt: skip
def test_formats(engine: GrammarEngine, form: dict[str, Any], allowed: list[str], others: list[str]) -> None:
    spec = _spec(engine, {"type": "structural_tag", "format": form})
    assert [text for text in allowed if not engine.allows(spec, text)] == []
    assert [text for text in others if engine.allows(spec, text)] == []


def test_the_older_form(engine: GrammarEngine) -> None:
    spec = _spec(engine, OLD)
    for text in ("", "text", 'a <function=f>5</function> b <function=g>"x"</function>', "<tool_call>true</tool_call>"):
        assert engine.allows(spec, text), text
    for text in ("<function=h>5</function>", '<function=f>"x"</function>', "<function=f>5", "a <tool_call>"):
        assert not engine.allows(spec, text), text


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_sampled_closes_its_tags(engine: GrammarEngine, seed: int) -> None:
    text = engine.sample(_spec(engine, OLD), seed, traps=("<function=", "<function=f>", "<tool_"))
    if text is not None:
        assert text.count("<function=") == text.count("</function>")


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ({}, "needs format"),
        ({"format": {"type": "token", "token": 5}}, "format: type must be one of"),
        ({"format": {"type": "qwen_xml_parameter", "json_schema": {}}}, "not 'qwen_xml_parameter'"),
        ({"format": {"type": "json_schema", "json_schema": {}, "style": "minimax_xml"}}, "style: only json"),
        ({"format": {"type": "regex"}}, "format.pattern must be a string"),
        ({"format": {"type": "grammar", "grammar": "root ::= x"}}, "names 'x'"),
        (
            {"format": {"type": "sequence", "elements": [{"type": "any_text"}, NUMBER]}},
            "elements[0]: nothing can follow",
        ),
        ({"format": {"type": "triggered_tags", "triggers": ["<c"], "tags": TAGS}}, "no trigger begins the tag '<a>'"),
        ({"format": {"type": "or", "elements": []}}, "at least one"),
        ({"structures": [{"begin": "<a>", "end": "</a>"}]}, "triggers must be a list"),
        ({"structures": [5], "triggers": ["<"]}, "structures must be a list"),
    ],
)
def test_what_is_wrong_is_named(engine: GrammarEngine, tag: dict[str, Any], message: str) -> None:
    with pytest.raises(StructureError) as caught:
        tag_writer(engine.tokenizer)(tag)
    assert message in str(caught.value)


def test_deep_ones_are_refused(engine: GrammarEngine) -> None:
    form: dict[str, Any] = NUMBER
    for _ in range(200):
        form = {"type": "optional", "content": form}
    with pytest.raises(StructureError, match="nested more than"):
        tag_writer(engine.tokenizer)({"format": form})


def _triggered(tags: list[dict[str, Any]], triggers: list[str]) -> dict[str, Any]:
    return {"format": {"type": "triggered_tags", "triggers": triggers, "tags": tags}}


def test_large_ones_are_refused(engine: GrammarEngine) -> None:
    """While they are written: all the tags are behind all the triggers."""
    begin = "<" + "a" * 1_000
    tags = [{"type": "tag", "begin": begin, "content": NUMBER, "end": ">"}] * 1_000
    for tag, message in (
        (_triggered(tags, [begin[:number] for number in range(1, 1_000)]), "too large"),
        (_triggered(TAGS, ["<"] * 3_000), "3000 elements"),
    ):
        with pytest.raises(StructureError, match=message):
            tag_writer(engine.tokenizer)(tag)


async def test_objects_are_closed(engine: GrammarEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    validator = Validator()
    try:
        for opened, spec in ((False, {}), (True, {"x-blade-closed": False})):
            tags = [{"begin": "<f>", "schema": {**schema, **spec}, "end": "</f>"}]
            for fields in (
                {"structural_tag": {"structures": tags, "triggers": ["<f>"]}},
                {"response_format": {"type": "structural_tag", "structures": tags, "triggers": ["<f>"]}},
            ):
                request = parse({"prompt": "x", **fields}, CompletionRequest)
                found, _ = await validated_structure(request, validator, tag_writer(engine.tokenizer))
                assert found is not None
                assert engine.allows(found, '<f>{"a": 5}</f>')
                assert engine.allows(found, '<f>{"b": 5}</f>') is opened
    finally:
        validator.close()


def test_every_field_that_takes_one(engine: GrammarEngine) -> None:
    tags = tag_writer(engine.tokenizer)
    ways: list[dict[str, Any]] = [
        {"response_format": OLD},
        {"structural_tag": OLD},
        {"structural_tag": json.dumps(OLD)},
        {"structured_outputs": {"structural_tag": json.dumps(OLD)}},
    ]
    for way in ways:
        found = requested_structure(parse({"prompt": "x", **way}, CompletionRequest), tags)
        assert found is not None
        assert found[0] == GrammarSpec("grammar", tags(OLD))
    with pytest.raises(ApiError) as caught:
        requested_structure(parse({"prompt": "x", "structural_tag": "[]"}, CompletionRequest), tags)
    assert caught.value.detail.param == "structural_tag"


REGEX = {"guided_regex": "a+"}
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}}
GBNF = 'root ::= "a" | root2\nroot2 ::= "b"'


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_grammar": 'start: "a"', "structured_outputs": {"grammar": 'start: "a"'}, "ebnf": 'start: "a"'},
        {"guided_grammar": GBNF, "structured_outputs": {"grammar": GBNF}, "ebnf": GBNF},
        {**REGEX, "structured_outputs": {"regex": "a+"}, "regex": "a+"},
        {"guided_choice": ["a", "b"], "structured_outputs": {"choice": ["a", "b"]}},
        {"guided_json": SCHEMA, "structured_outputs": {"json": json.dumps(SCHEMA, indent=2)}, "json_schema": SCHEMA},
        {"response_format": {"type": "json_object"}, "structured_outputs": {"json_object": True}},
    ],
)
def test_one_structure_in_several_fields_is_one(fields: dict[str, Any]) -> None:
    found = requested_structure(parse({"prompt": "x", **fields}, CompletionRequest))
    first, *others = fields
    assert others
    assert found is not None
    assert found == requested_structure(parse({"prompt": "x", first: fields[first]}, CompletionRequest))


@pytest.mark.parametrize("field", ["guided_json", "json_schema"])
def test_an_objects_schema_is_narrower_than_any_object(field: str) -> None:
    """As instructor's JSON mode sends it, where ``extra_body`` adds the schema."""
    alone = requested_structure(parse({"prompt": "x", field: SCHEMA}, CompletionRequest))
    both = {field: SCHEMA, "response_format": {"type": "json_object"}, "structured_outputs": {"json_object": True}}
    assert requested_structure(parse({"prompt": "x", **both}, CompletionRequest)) == alone


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (
            {"response_format": {"type": "json_object"}, "guided_json": {"type": "array"}},
            "response_format and guided_json",
        ),
        ({"response_format": {"type": "json_object"}, "guided_json": "["}, "response_format and guided_json"),
        ({**REGEX, "regex": "b+"}, "guided_regex and regex"),
        ({"json_schema": SCHEMA, "ebnf": GBNF}, "ebnf and json_schema"),
        ({"guided_choice": ["a", "b"], "structured_outputs": {"choice": ["b", "a"]}}, "structured_outputs.choice"),
    ],
)
def test_different_ones_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ApiError, match=named):
        requested_structure(parse({"prompt": "x", **fields}, CompletionRequest))


def test_ebnf_that_cannot_be_read_names_its_field() -> None:
    with pytest.raises(ApiError, match=r"structured_outputs\.grammar: rule 'root' names 'x'") as caught:
        requested_structure(parse({"prompt": "x", "structured_outputs": {"grammar": "root ::= x"}}, CompletionRequest))
    assert caught.value.detail.param == "structured_outputs"
