"""Reading a client's grammar or schema costs time and memory as its length does, whatever is in it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided import limits
from blade_llm.sampling.guided.checks import check_text
from blade_llm.sampling.guided.errors import GrammarSpecError, readable
from blade_llm.sampling.guided.lark import check_recursion, embedded_schemas
from blade_llm.sampling.guided.lark_tokens import read_tokens
from blade_llm.sampling.guided.references import Place
from blade_llm.sampling.guided.schema import check_schema

_MANY = 100_000


@pytest.mark.parametrize(
    "text",
    [
        'start: "a" {' + " " * _MANY + "x",
        "start: " + "<" * _MANY,
        'start: "' + r"\"" * _MANY,
        "start: /" + r"\/" * _MANY,
        "start: " + "-> " * (_MANY // 3) + " " * _MANY,
        "start: " + ("%json" + " " * 100) * (_MANY // 105),
        "start: " + "(" * 300 + "|".join(f"a{index}" for index in range(10_000)) + ")" * 300,
        "start: a0\n" + "\n".join(f"a{index}: a{index + 1}" for index in range(limits.MAX_RULES - 2)) + '\na1998: "x"',
    ],
    ids=["braces", "brackets", "string", "expression", "aliases", "directives", "groups", "rules"],
)
@pytest.mark.timeout(60)
def test_hostile_grammars_are_read_without_going_back(text: str) -> None:
    """Reading that goes back over what it has read takes minutes or for ever for these."""
    check_recursion(text)
    embedded_schemas(text)


def test_tokens() -> None:
    text = (
        'a{2 , 3}: "\\"x"i /a\n\\//i <|im_start|> -> b %json {"a": "%json {"} // c\n"open " {,} {1} {1,} { , 2 } {} {a}'
    )
    found = [(token.kind, token.text) for token in read_tokens(text) if token.kind not in ("space", "newline")]
    assert found == [
        ("name", "a"),
        ("repeat", "{2 , 3}"),
        ("operator", ":"),
        ("string", '"\\"x"i'),
        ("regex", "/a\n\\//i"),
        ("special", "<|im_start|>"),
        ("alias", "-> b"),
        ("json", '%json {"a": "%json {"}'),
        ("string", '"open "'),
        ("repeat", "{,}"),
        ("repeat", "{1}"),
        ("repeat", "{1,}"),
        ("repeat", "{ , 2 }"),
        ("repeat", "{}"),
        ("operator", "{"),
        ("name", "a"),
        ("operator", "}"),
    ]


def test_a_string_that_is_not_closed_ends_the_reading() -> None:
    assert [token.kind for token in read_tokens('"a\nb: "c"')] == ["unclosed"]


def test_recursion_through_nested_groups_is_found() -> None:
    with pytest.raises(GrammarSpecError, match="left recursion: start → start"):
        check_recursion('start: ((("x"?))) start | "b"')
    with pytest.raises(GrammarSpecError, match="never ends"):
        check_recursion('start: "a" (("x" start) | ("y" (start | b)))\nb: "z" start')


def test_long_cycles_are_shown_in_part() -> None:
    rules = "\n".join(f"a{index}: a{index + 1}" for index in range(100))
    with pytest.raises(GrammarSpecError, match=r"a0 → .* → … → a0; write") as caught:
        check_recursion(f"start: a0\n{rules}\na100: a0")
    assert len(str(caught.value)) < 200


def test_grammars_of_too_many_rules_are_refused() -> None:
    rules = "\n".join(f'a{index}: "x"' for index in range(limits.MAX_RULES))
    with pytest.raises(GrammarSpecError, match="more than 2000 rules"):
        check_text(GrammarSpec("grammar", f"start: a0\n{rules}"))


def test_broken_json_in_a_grammar_is_refused_at_once() -> None:
    with pytest.raises(GrammarSpecError, match="%json is not followed by valid JSON: Expecting"):
        check_text(GrammarSpec("grammar", "start: " + "%json {" * 1000))


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"$anchor": "z"}}, "anyOf": [{"$ref": "#z"} for _ in range(10_000)]},
        {"type": "object", "properties": {"k" * _MANY: {"anyOf": [{} for _ in range(30_000)]}}},  # took 3 GB
    ],
    ids=["anchors", "long keys"],
)
def test_hostile_schemas_are_read_in_linear_time(schema: dict[str, Any]) -> None:
    started = time.thread_time()
    check_schema(schema)
    assert time.thread_time() - started < 5


def test_places_are_written_as_json_pointers() -> None:
    assert str(Place("#") / "properties" / "a/b~" / "0") == "#/properties/a~1b~0/0"


def test_messages_with_long_quotations_are_read_in_linear_time() -> None:
    started = time.thread_time()
    assert len(readable("regex parse error:" * _MANY)) < 600
    assert (
        readable("failed: regex parse error:\n  (a\n  ^\nerror: unclosed group\n")
        == "regular expression: unclosed group"
    )
    assert time.thread_time() - started < 1
