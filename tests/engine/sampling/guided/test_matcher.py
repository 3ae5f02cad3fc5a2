"""Compiling grammar specs, following them token by token, and the tokenizers that can be used."""

from __future__ import annotations

import json
import re
from typing import Any

import llguidance
import numpy as np
import pytest
from engine_support.guided_driver import EOS, Driver
from engine_support.hard_schemas import EMPLOYEE

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.grammars import CachingGrammarCompiler
from blade_llm.sampling.guided.matcher import MatcherGrammar

IPV4 = r"((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.){3}(25[0-5]|(2[0-4]|1\d|[1-9]|)\d)"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(tmp_path_factory.mktemp("tokenizer"), merges=True)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_an_expression_matches_the_whole_output(driver: Driver, rng: np.random.Generator) -> None:
    """BladeLLM's documented one, with an empty alternative; digits are ASCII."""
    for _ in range(40):
        output = driver.sample(GrammarSpec("regex", IPV4), rng)
        assert output.finished
        assert re.fullmatch(IPV4, output.text, re.ASCII)
        assert all(0 <= int(part) <= 255 for part in output.text.split("."))


@pytest.mark.parametrize(
    ("expression", "yes", "no"),
    [
        (r"^abc$", ["abc"], ["ab", "abcd"]),
        (r"a/b\/[/\]]", ["a/b//", "a/b/]"], ["a/b/"]),
        ("a\nb\té", ["a\nb\té"], ["a b\té"]),
        (r"\d\w\s", ["1a ", "0_\t"], ["\u0661a ", "1é ", "1a\u00a0"]),
        (r"[\d\-]{2}\\d", ["4-\\d"], ["4-3"]),
        (r"\p{Lu}(?i:x)|", ["ÄX", "Äx", ""], ["äx"]),
    ],
)
def test_expressions(driver: Driver, expression: str, yes: list[str], no: list[str]) -> None:
    spec = GrammarSpec("regex", expression)
    assert all(driver.takes(spec, text) for text in yes)
    assert not any(driver.takes(spec, text) for text in no)


def test_a_choice_is_one_of_its_strings(driver: Driver, rng: np.random.Generator) -> None:
    choices = ["yes", "no", "yes, but", 'quo"te\\\n', "漢字 😀", "null\x00byte", "\x7f"]
    spec = GrammarSpec("choice", json.dumps(choices))
    outputs = [driver.sample(spec, rng) for _ in range(60)]
    assert {output.text for output in outputs} == set(choices)


def test_a_grammar(driver: Driver, rng: np.random.Generator) -> None:
    spec = GrammarSpec(
        "grammar",
        'start: "(" sum ")" %json {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 2}\n'
        'sum: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]{1,3}/',
    )
    for _ in range(20):
        output = driver.sample(spec, rng)
        assert re.fullmatch(r"\(\d{1,3}(\+\d{1,3})*\)\[null, null\]", output.text)


def test_white_space_is_fixed(driver: Driver) -> None:
    spec = GrammarSpec("json", '{"type": "object", "properties": {"a": {"type": "array"}, "b": true}}')
    assert driver.takes(spec, '{"a": [1, {"x": 2}], "b": 3}')
    for text in (
        '{"a":[]}',
        '{ "a": []}',
        '{"a": []} ',
        '{"a": [1,2]}',
        '{"a": [1,  2]}',
        '{\n"a": []}',
        '{"b": 1, "a": []}',
    ):
        assert not driver.takes(spec, text), text


def test_the_documented_schema(driver: Driver) -> None:
    text = (
        '{"name": "Ada", "age": 36, "skills": ["a", "b", "0123456789"], '
        '"work history": [{"company": "c", "position": "p"}]}'
    )
    assert driver.takes(GrammarSpec("json", json.dumps(EMPLOYEE)), text)
    assert not driver.takes(GrammarSpec("json", json.dumps(EMPLOYEE)), text.replace("0123456789", "0123456789x"))
    assert not driver.takes(GrammarSpec("json", json.dumps(EMPLOYEE)), text.replace('"a", ', ""))


def test_forced_tokens_are_the_only_ones_allowed_and_change_nothing(driver: Driver) -> None:
    grammar = driver.start(
        GrammarSpec("json", '{"type": "object", "properties": {"name": {"enum": ["x"]}}, "required": ["name"]}')
    )
    before = driver.allowed(grammar)
    forced = grammar.forced()
    assert forced == grammar.forced()
    assert driver.text(forced).startswith('{"name": "')
    assert set(driver.allowed(grammar)) == set(before)
    grammar.accept(forced)
    assert not driver.start(GrammarSpec("regex", "[ab]")).forced()


def test_an_end_of_sequence_is_allowed_only_where_the_output_may_end(driver: Driver) -> None:
    grammar = driver.start(GrammarSpec("regex", "ab?"))
    a, b = driver.vocabulary.tokenize_str("a"), driver.vocabulary.tokenize_str("b")
    assert not set(EOS) & set(driver.allowed(grammar))
    grammar.accept(a)
    assert set(driver.allowed(grammar)) == {*EOS, *b}
    assert not grammar.finished
    for token in EOS:
        ended = grammar.copy()
        ended.accept([token])
        assert ended.finished
    grammar.accept(b)
    assert grammar.finished
    grammar.accept([EOS[0]])
    assert grammar.finished


def test_copies_go_their_own_way(driver: Driver) -> None:
    one = driver.start(GrammarSpec("choice", '["ab", "cd"]'))
    other = one.copy()
    one.accept(driver.vocabulary.tokenize_str("a"))
    other.accept(driver.vocabulary.tokenize_str("cd"))
    assert other.finished
    assert not one.finished
    assert driver.start(GrammarSpec("choice", '["ab", "cd"]')).forced() == []


def test_a_token_that_is_not_allowed_is_an_error(driver: Driver) -> None:
    grammar = driver.start(GrammarSpec("regex", "[ab]"))
    with pytest.raises(GrammarSpecError, match="left its structure"):
        grammar.accept(driver.vocabulary.tokenize_str("c"))
    with pytest.raises(GrammarSpecError):
        driver.allowed(grammar)
    assert not grammar.finished


def test_the_mask_is_written_whole(driver: Driver) -> None:
    """Padding of the vocabulary and the last word's spare bits included."""
    grammar = driver.start(GrammarSpec("regex", "a"))
    mask = np.full(driver.vocab_size // 32, -1, np.int32)
    grammar.fill(mask)
    assert np.unpackbits(mask.view(np.uint8)).sum() == 1


def test_special_tokens_are_no_text(driver: Driver) -> None:
    """A free text cannot contain the token that ends the turn, but a grammar can require one."""
    allowed = set(driver.allowed(driver.start(GrammarSpec("regex", r"(.|\n)+"))))
    assert not allowed & {0, 1, 2}
    assert driver.allowed(driver.start(GrammarSpec("grammar", 'start: <|im_start|> "a"'))).tolist() == [1]
    with pytest.raises(GrammarSpecError, match=r"unknown special token: .<\|nosuch\|>"):
        driver.start(GrammarSpec("grammar", 'start: <|nosuch|> "a"'))


AMBIGUOUS = GrammarSpec("grammar", 'start: "a" start start | "a"')


def test_a_limit_hit_in_mid_output_is_an_error_that_names_it(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = llguidance.LLParserLimits(max_items_in_row=50, verbose_errors=False)
    monkeypatch.setattr("blade_llm.sampling.guided.grammars.parser_limits", lambda: limits)
    grammar = CachingGrammarCompiler(lambda: driver.vocabulary, driver.vocab_size).compile(AMBIGUOUS).result(10)
    with pytest.raises(GrammarSpecError, match=r"max is 50.*; simplify the schema, expression or grammar"):
        grammar.accept(driver.vocabulary.tokenize_str("a") * 100)


def test_an_output_that_takes_the_time_of_others_ends(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    a = driver.vocabulary.tokenize_str("a")
    grammar = driver.start(AMBIGUOUS)
    grammar.accept(a)
    monkeypatch.setattr("blade_llm.sampling.guided.limits.TOKEN_SECONDS", -0.5)
    copy = grammar.copy()
    with pytest.raises(GrammarSpecError, match="longer than the limit of -500 ms a token; simplify"):
        copy.accept(a * 5)
    grammar.accept(a)  # what it has left is its own


def test_a_grammar_whose_lexer_is_full_is_compiled_anew(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = llguidance.LLParserLimits(max_lexer_states=2000, verbose_errors=False)
    monkeypatch.setattr("blade_llm.sampling.guided.grammars.parser_limits", lambda: limits)
    grammars = CachingGrammarCompiler(lambda: driver.vocabulary, driver.vocab_size)
    spec = GrammarSpec("json", '{"type": "string", "maxLength": 9000}')
    text = driver.vocabulary.tokenize_str('"' + "a b c d e " * 100)
    for _ in range(2):
        grammar = grammars.compile(spec).result(10)
        assert not grammar.exhausted
        with pytest.raises(GrammarSpecError, match="too many states"):
            _follow(driver, grammar, text)
        assert grammar.exhausted
    grammars.close()


def _follow(driver: Driver, grammar: MatcherGrammar, token_ids: list[int]) -> None:
    for token_id in token_ids:
        driver.allowed(grammar)
        grammar.accept([token_id])


def test_an_exhausted_grammar_is_evicted_first(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blade_llm.sampling.guided.grammars._MAX_GRAMMARS", 3)
    grammars = CachingGrammarCompiler(lambda: driver.vocabulary, driver.vocab_size)
    made = [grammars.compile(GrammarSpec("regex", letter)).result(10) for letter in "abc"]
    made[1]._faults.append("worn out")
    grammars.compile(GrammarSpec("regex", "d")).result(10)
    assert [spec.value for spec in grammars._compiled] == ["a", "c", "d"]
    grammars.close()


def test_the_longest_strings_that_are_taken_can_be_output_twice(driver: Driver) -> None:
    spec = GrammarSpec("json", '{"type": "string", "maxLength": 10000}')
    token_ids = driver.vocabulary.tokenize_str(json.dumps("ab 漢" * 2500, ensure_ascii=False))
    for _ in range(2):
        grammar = driver.start(spec)
        for begin in range(0, len(token_ids), 50):
            grammar.accept(token_ids[begin : begin + 50])
            driver.allowed(grammar)
        assert grammar.finished


class PanicException(BaseException):
    """As Rust's failed assertions arrive."""


class _Panics:
    """A matcher whose every method fails."""

    def __getattr__(self, name: str) -> Any:
        def fail(*arguments: Any) -> bool:
            if name in ("is_stopped", "is_error"):
                return False
            raise PanicException("assertion failed")

        return fail


def test_a_panic_is_an_error_of_the_grammar_spec(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    panics: Any = _Panics()
    for call in (
        lambda grammar: grammar.accept([5]),
        lambda grammar: grammar.forced(),
        lambda grammar: grammar.fill(np.empty(8, np.int32)),
        lambda grammar: grammar.copy(),
    ):
        grammar = MatcherGrammar(panics, frozenset(EOS))
        with pytest.raises(GrammarSpecError, match="assertion failed"):
            call(grammar)
        assert grammar.exhausted
    grammars = CachingGrammarCompiler(lambda: driver.vocabulary, driver.vocab_size)
    monkeypatch.setattr(grammars, "_matcher", lambda *_: MatcherGrammar(panics, frozenset(EOS)))
    with pytest.raises(GrammarSpecError, match="assertion failed"):
        grammars.compile(GrammarSpec("regex", "a")).result(10)
    grammars.close()


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"format": "date"}, ['"2020-02-29"', '"2021-12-31"', '"2000-02-29"', "3"],
         ['"2021-02-29"', '"1900-02-29"', '"0000-01-01"', '"2021-04-31"']),
        ({"format": "date", "pattern": "^2020"}, ['"2020-02-29"'], ['"2021-02-28"']),
        ({"type": ["string", "null"], "format": "time"}, ['"12:00:59.5+01:00"', "null"],
         ['"12:00:60Z"', '"24:00:00Z"']),
        ({"format": "date-time"}, ['"2020-02-29T12:00:59Z"'], ['"2020-02-29T12:00:60Z"', '"2021-02-29T12:00:59Z"']),
        ({"const": {"format": "date"}}, ['{"format": "date"}'], []),
        ({"type": "object", "properties": {"const": {"format": "date"}}, "required": ["const"]},
         ['{"const": "2021-02-28"}'], ['{"const": "2021-02-29"}']),
        ({"type": "integer", "format": "int32"}, ["2147483647", "-2147483648"], ["2147483648"]),
        ({"type": "integer", "format": "int64", "minimum": 0}, [str(2**63 - 1)], [str(2**63), "-1"]),
        ({"type": "array", "uniqueItems": False}, ["[1, 1]"], []),
        ({"properties": {"uniqueItems": {"type": "null"}}, "type": "object"}, ['{"uniqueItems": null}'],
         ['{"uniqueItems": 1}']),
    ],
)  # fmt: skip
def test_keywords_that_are_put_in_other_words(driver: Driver, schema: Any, yes: list[str], no: list[str]) -> None:
    spec = GrammarSpec("json", json.dumps(schema))
    assert [text for text in yes if not driver.takes(spec, text)] == []
    assert [text for text in no if driver.takes(spec, text)] == []


OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    "schema",
    [
        OPEN,
        {**OPEN, "required": ["a"], "additionalProperties": {"type": "string"}},
        {
            "type": "object",
            "patternProperties": {"^a": {"type": "integer"}},
            "additionalProperties": {"type": "string"},
        },
    ],
)
def test_a_listed_key_has_one_spelling(driver: Driver, schema: Any) -> None:
    """Else a value of another type could stand under it, and would be the one that counts."""
    for spec in (
        GrammarSpec("json", json.dumps(schema)),
        GrammarSpec("grammar", f"start: %json {json.dumps(schema)}"),
    ):
        for text in ('{"\\u0061": "x"}', '{"a": 1, "\\u0061": "x"}'):
            assert not driver.takes(spec, text), text
        assert driver.takes(spec, '{"a": 1, "\\n\\"b": "x\\t"}')


def test_control_characters_that_are_required_can_be_written(driver: Driver) -> None:
    assert driver.takes(GrammarSpec("json", '{"const": "a\\u0001"}'), '"a\\u0001"')
    closed = {"type": "object", "properties": {"a": {"pattern": r"^\x01$"}}, "additionalProperties": False}
    assert driver.takes(GrammarSpec("json", json.dumps(closed)), '{"a": "\\u0001"}')
