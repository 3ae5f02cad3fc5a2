"""What the API server refuses before the engine gets it, and how long that may take."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from engine_support.hard_schemas import EMPLOYEE
from engine_support.schemas import UNSUPPORTED

from blade_llm.api.common.errors import ApiError
from blade_llm.api.generation.structured_outputs import StructureFields, check_structure, requested_structure
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided import validation
from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.lark import check_recursion
from blade_llm.sampling.guided.threads import DaemonThreads
from blade_llm.sampling.guided.validation import Validator, validate

_STRING = {"type": "string"}
_LONG, _LONGER = '{"type": "string", "maxLength": 5000}', '{"type": "string", "maxLength": 5001}'


def _refused(spec: GrammarSpec, message: str) -> None:
    with pytest.raises(GrammarSpecError, match=message):
        validate(spec)


@pytest.mark.parametrize(("keyword", "value"), UNSUPPORTED)
def test_unsupported_keywords_are_refused_with_their_place(keyword: str, value: Any) -> None:
    schema = {"type": "object", "properties": {"a/b": {"type": "array", "items": {keyword: value}}}}
    _refused(GrammarSpec("json", json.dumps(schema)), re.escape(f"#/properties/a~1b/items/{keyword}: "))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([], "#: a schema must be an object"),
        ("text", "#: a schema must be an object or a boolean, not a string"),
        (False, "a JSON Schema must be an object"),
        ({"type": "strng"}, "#/type: must be one of null, boolean"),
        ({"type": ["string", "text"]}, "#/type: must be one of"),
        ({"type": []}, "#/type: must be one of"),
        ({"minLength": -1}, "#/minLength: must be a whole number"),
        ({"minLength": 1.5}, "#/minLength: must be a whole number"),
        ({"maxItems": True}, "#/maxItems: must be a whole number"),
        ({"exclusiveMinimum": True, "minimum": 1}, "#/exclusiveMinimum: must be a number"),
        ({"multipleOf": 0}, "#/multipleOf: must be a number greater than 0"),
        ({"required": "a"}, "#/required: must be a list of strings"),
        ({"properties": []}, "#/properties: must be an object"),
        ({"properties": {"a": 1}}, "#/properties/a: a schema must be an object or a boolean, not a number"),
        ({"items": [_STRING]}, "#/items: must be one schema .*prefixItems"),
        ({"enum": []}, "#/enum: must be a list of at least one value"),
        ({"anyOf": []}, "#/anyOf: must be a list of at least one schema"),
        ({"pattern": 5}, "#/pattern: must be a string"),
        ({"type": "string", "pattern": "(a"}, "regular expression: unclosed group"),
        ({"type": "string", "pattern": "a(?=b)"}, "regular expression: look-around"),
        ({"type": "string", "format": 3}, "#/format: must be a string"),
        ({"type": "array", "uniqueItems": "yes"}, "#/uniqueItems: must be true or false"),
        ({"type": "array", "items": {"enum": [1, 2]}, "minItems": 3, "uniqueItems": True}, "fewer different items"),
        ({"nullable": "yes"}, "#/nullable: must be true or false"),
        ({"x-blade-closed": 1}, "#/x-blade-closed: must be true or false"),
        (
            {"properties": {"a": {"propertyNames": {"enum": ["b"], "maxLength": 3}}}},
            "#/properties/a/propertyNames: keyword 'propertyNames' is not supported but with",
        ),
        (
            {"properties": {"b": True}, "propertyNames": {"pattern": "^a"}},
            "#/propertyNames: .* without properties and patternProperties",
        ),
        (
            {"allOf": [{"anyOf": [{"properties": {"b": True}}, {}]}], "unevaluatedProperties": False},
            "#/unevaluatedProperties: .* not supported together with anyOf",
        ),
        ({"prefixItems": [{}], "anyOf": [{}], "unevaluatedItems": False}, "#/unevaluatedItems: .* not supported here"),
        ({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "object"}}}, "oneOf"),
        ({"type": "string", "pattern": "^(?!a)b"}, "regular expression: look-around"),
        ({"type": "string", "maxLength": 10_001}, "add up to 10001 characters; the limit is 10000"),
        ({"anyOf": [{"minLength": 6000}, {"maxLength": 5000}]}, "add up to 11000 characters"),
        ({"properties": {"a": {"enum": ["x", "\u0001"]}}}, "control character .*additionalProperties"),
        ({"properties": {"a": {"pattern": r"^\x7f+$"}}}, "control character"),
        ({"maxlength": 3}, "keyword 'maxlength' is not supported; did you mean 'maxLength'"),
        ({"additionalproperties": False}, "did you mean 'additionalProperties'"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, r"#/\$schema: only drafts 6, 7"),
        ({"properties": {"a": {"$id": "x"}}}, r"#/properties/a/\$id: .* at the root only"),
        ({"$ref": "https://example.com/s.json"}, "external reference 'https://example.com/s.json' is not supported"),
        ({"$ref": "other.json#/a"}, "external reference"),
        ({"$ref": "#/$defs/none"}, "'#/\\$defs/none' does not exist"),
        ({"$ref": "#none"}, "'#none' does not exist"),
        ({"$ref": "#/title", "title": "x"}, "#/title: a schema must be an object"),
        ({"const": 2**53 + 1}, r"#/const: \d+ is too large to be kept exactly"),
        ({"enum": [{"a": [1e300]}]}, "#/enum: .* too large"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, r"Unsatisfiable schema: minLength \(5\) is greater"),
        ({"type": "object", "required": ["x"], "additionalProperties": False}, "property 'x' is unsatisfiable"),
        ({"type": "string", "format": "date", "maxLength": 3}, "Unsatisfiable schema: Regex is empty$"),
        ({"oneOf": [{"minimum": 1}, {"type": "integer"}]}, "oneOf is supported only where no value can match two"),
        ({"type": "object", "minProperties": 2}, "#/minProperties: at most one more than"),
        ({"type": "object", "minProperties": 2, "required": ["a"]}, "#/minProperties: at most one more than"),
        ({"type": "number", "exclusiveMinimum": 10, "maximum": 10.5}, "#/exclusiveMinimum: 10 with an upper bound"),
        ({"type": "number", "exclusiveMaximum": 0, "minimum": -0.5}, "#/exclusiveMaximum: 0 with a lower bound"),
        ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}, "#/allOf/0/exclusiveMinimum: 0 with an upper bound"),
        (
            {"allOf": [{"properties": {"x": {"exclusiveMinimum": 0}}}, {"$ref": "#/$defs/b"}],
             "$defs": {"b": {"properties": {"x": {"maximum": 0.5}}}}},
            "exclusiveMinimum: 0 with an upper bound",
        ),
        ({"$ref": "#"}, "endless recursion: the schema with '#'"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "endless recursion"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "endless recursion"),
        ({"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}, "endless recursion"),
        ({"allOf": [{"$ref": "#"}]}, "endless recursion"),
        (
            {
                "properties": {"x": {"$ref": "#/$defs/a"}},
                "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}},
            },
            "endless recursion",
        ),
    ],
)  # fmt: skip
def test_schemas_that_are_refused(schema: Any, message: str) -> None:
    _refused(GrammarSpec("json", json.dumps(schema)), message)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        EMPLOYEE,
        {"$defs": {"unused": {"not": {}}}, "type": "string"},
        {"properties": {"not": _STRING, "format": {"const": "credit-card"}, "if": {"enum": ["then"]}}},
        {"const": {"not": 1, "$ref": "https://example.com"}},
        {"default": {"type": "strng"}, "examples": [{"$ref": "x"}], "x-anything": {"not": 1}},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"properties": {"a": {"exclusiveMinimum": 0}, "b": {"maximum": 0.5}}},
        {"properties": {"a": {"exclusiveMinimum": 0}, "b": {"maximum": 0.5}, "c": {"allOf": [_STRING]}}},
        {"$schema": "http://json-schema.org/schema#", "type": "object"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"},
        {"type": "array", "uniqueItems": False},
        {"type": "integer", "format": "int64"},
        {"type": "array", "items": {"type": "string", "maxLength": 10_000}, "maxItems": 3},
        {"properties": {f"p{index}": {"type": "string", "maxLength": 2000} for index in range(9)}},
        {"type": "object", "properties": {"a": {"const": "\u0001"}}, "additionalProperties": False},
        {"properties": {"a": {"pattern": r"^[^\x00-\x1f]*$"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": ["array", "null"], "items": {"$ref": "#"}, "minItems": 1},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"anyOf": [{"type": "array", "items": {"$ref": "#"}, "minItems": 2}, {"type": "null"}]},
    ],
)
def test_schemas_that_are_taken(schema: Any) -> None:
    validate(GrammarSpec("json", json.dumps(schema)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("{} {}", "not valid JSON"),
        ('{"const": NaN}', "not valid JSON"),
        ('{"a": "\\ud800"}', "not valid JSON"),
        ('{"title": "\ud800"}', "lone surrogate"),
        ("[" * 5000, "nested too deeply"),
        ('{"anyOf":[' * 40 + "{}" + "]}" * 40, "nested more than 60 levels deep, the limit"),
    ],
)
def test_texts_that_are_no_schema(text: str, message: str) -> None:
    _refused(GrammarSpec("json", text), message)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (GrammarSpec("regex", "(a"), "regular expression: unclosed group"),
        (GrammarSpec("regex", r"(a)\1"), "regular expression: backreferences are not supported"),
        (GrammarSpec("regex", r"a(?!b)"), "regular expression: look-around"),
        (GrammarSpec("regex", r"[^\s\S]"), "no answer can satisfy it"),
        (GrammarSpec("regex", "(" * 300 + ")" * 300), "regular expression"),
        (GrammarSpec("regex", "^$"), "only the empty answer"),
        (GrammarSpec("regex", "a" * 16_385), "has 16385 characters; the limit is 16384"),
        (GrammarSpec("regex", "\ud800"), "lone surrogate"),
        (GrammarSpec("choice", "[]"), "at least one alternative"),
        (GrammarSpec("choice", "5"), "must be a JSON list of strings"),
        (GrammarSpec("grammar", f"start: %json {_LONG} %json {{}} | %json {_LONGER}"), "add up to 10001 characters"),
        (GrammarSpec("grammar", 'root ::= "a"'), "Expected token"),
        (GrammarSpec("grammar", "start: b"), 'unknown name: "b"'),
        (GrammarSpec("grammar", 'start: "a" %json {"not": {}}'), "#/not: keyword 'not' is not supported"),
        (GrammarSpec("grammar", 'start: %json {"type": "string", "x-guidance": {"lenient": true}}'), "x-guidance"),
    ],
)
def test_other_grammar_specs_that_are_refused(spec: GrammarSpec, message: str) -> None:
    _refused(spec, message)


@pytest.mark.parametrize(
    "text",
    [
        'start: start "a" | "b"',
        'start: x\nx: y "a"\ny: x | "b"',
        'start: a\n?a: b "x"\n  | "q" // c\nb: ("x" | start)* "z"',
        'start: a? start "x" | "y"\na: "z"',
        'start[capture="x"]: more\nmore: more "x" | "x"',
    ],
)
def test_left_recursion_is_refused(text: str) -> None:
    _refused(GrammarSpec("grammar", text), "left recursion: .* → ")


@pytest.mark.parametrize(
    "text",
    [
        'start: "a" start | "b"',
        'start: term ("+" term)*\nterm: /[0-9]+/ | "(" start ")"',
        'start: ("x" start)? "y"',
        'start: a{2,3} | "start: start"\na: "(" start ")" | /start: \\/start/ | %json {"const": "start"}',
        'start: <|im_start|> "a" // start: start\nWORD: /x+/',
    ],
)
def test_other_recursion_is_taken(text: str) -> None:
    validate(GrammarSpec("grammar", text))


def test_a_grammar_that_cannot_end_is_refused() -> None:
    _refused(GrammarSpec("grammar", 'start: "a" next\nnext: "b" start'), "rule start never ends")
    check_recursion("%unknown construct (((")  # left to llguidance


@pytest.mark.parametrize(
    ("schema", "limit"),
    [
        ({"properties": {f"p{index}": {} for index in range(10_000)}}, "10000 properties; the limit is 1000"),
        ({f"x-{n}": {"properties": {f"p{i}": {} for i in range(900)}} for n in range(6)}, "5400 .* limit is 5000"),
        ({"enum": ["x" * 1000] * 300}, "characters; the limit is 262144"),
        ({"type": "object", "patternProperties": {f"^{i}$": {} for i in range(51)}}, "the limit is 50 patterns"),
        ({"allOf": [{"anyOf": [{"required": [f"p{i}_{j}"]} for j in range(4)]} for i in range(12)]}, "too large"),
    ],
)  # fmt: skip
def test_large_schemas_are_refused_with_the_limit(schema: Any, limit: str) -> None:
    _refused(GrammarSpec("json", json.dumps(schema)), limit)


def test_an_expression_may_be_a_space() -> None:
    assert requested_structure(StructureFields(guided_regex=" ")) == (GrammarSpec("regex", " "), "guided_regex")
    validate(GrammarSpec("regex", " "))


async def test_results_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[GrammarSpec] = []
    monkeypatch.setattr(validation, "validate", lambda spec: calls.append(spec) or validate(spec))
    validator = Validator()
    good, bad = GrammarSpec("json", "{}"), GrammarSpec("regex", "(a")
    for _ in range(3):
        await validator.validate(good)
        with pytest.raises(GrammarSpecError, match="unclosed group"):
            await validator.validate(bad)
    assert calls == [good, bad]
    validator.close()


class Stuck:
    """Stands in for validation: what begins with ``slow`` takes until :attr:`release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release = threading.Event()
        self.begun: list[str] = []
        monkeypatch.setattr(validation, "validate", self._validate)

    def _validate(self, spec: GrammarSpec) -> None:
        self.begun.append(spec.value)
        if spec.value.startswith("slow"):
            self.release.wait(10)


async def test_stuck_grammar_specs_do_not_keep_others_waiting_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Stuck(monkeypatch)
    validator = Validator(seconds=0.1)
    slow = [GrammarSpec("regex", f"slow{index}") for index in range(2)]
    stuck = [asyncio.ensure_future(validator.validate(spec)) for spec in slow]
    await asyncio.sleep(0.01)
    waiting = asyncio.ensure_future(check_structure(GrammarSpec("regex", "quick"), validator, "guided_regex"))
    for each in stuck:
        with pytest.raises(GrammarSpecError, match=r"longer than the limit of 0.1 s"):
            await each
    with pytest.raises(ApiError, match="busy") as caught:  # both threads are taken, and nothing is said against it
        await asyncio.wait_for(waiting, 5)
    assert (caught.value.status, caught.value.headers) == (503, {"retry-after": "1"})
    library.release.set()
    await asyncio.wait_for(validator.validate(GrammarSpec("regex", "quick")), 5)
    validator.close()


async def test_a_time_out_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Stuck(monkeypatch)
    validator = Validator(seconds=0.1)
    slow = GrammarSpec("regex", "slow")
    for _ in range(3):
        with pytest.raises(GrammarSpecError, match=r"longer than the limit of 0.1 s"):
            await validator.validate(slow)
    assert library.begun == ["slow"]  # all three waited for the same thread
    assert validator._cached == {}
    library.release.set()
    await asyncio.wait_for(validator.validate(slow), 5)
    validator.close()


def test_a_stuck_thread_does_not_keep_the_process_from_ending() -> None:
    script = """
import asyncio, time
from blade_llm.api.common.errors import ApiError
from blade_llm.api.generation.structured_outputs import check_structure
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided import validation
validation.validate = lambda spec: time.sleep(60)
async def main():
    validator = validation.Validator(seconds=0.1)
    try:
        await validator.validate(validation.GrammarSpec("regex", "a"))
    except ValueError as error:
        print(error)
    validator.close()
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=40, check=True)
    assert "longer than the limit" in ended.stdout


def test_closed_threads_take_nothing_and_cancel_what_waits() -> None:
    release = threading.Event()
    threads = DaemonThreads(1, "test")
    running, waiting = threads.submit(release.wait, 10), threads.submit(int)
    while not running.running():
        time.sleep(0.001)
    threads.close()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(int)
    release.set()
    assert running.result(10)


async def test_the_cache_of_results_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_MAX_CACHED", 4)
    validator = Validator()
    for index in range(10):
        await validator.validate(GrammarSpec("regex", f"a{index}"))
    assert [spec.value for spec in validator._cached] == ["a6", "a7", "a8", "a9"]
    validator.close()


class PanicException(BaseException):
    """As Rust's failed assertions arrive."""


@pytest.mark.parametrize("error", [PanicException("assertion failed: a < b"), RuntimeError("assertion failed: a < b")])
async def test_a_failure_of_the_library_is_the_specs_alone(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(spec: GrammarSpec) -> None:
        raise error

    monkeypatch.setattr(validation, "validate", fail)
    validator = Validator()
    with pytest.raises(GrammarSpecError, match="assertion failed: a < b"):
        await validator.validate(GrammarSpec("regex", "a"))
    validator.close()
