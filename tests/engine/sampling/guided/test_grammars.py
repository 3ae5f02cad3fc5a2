"""Compiling grammar specs off the loop, keeping them, and the view of a tokenizer that all of them need."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import llguidance
import pytest
from engine_support.guided_driver import Driver
from engine_support.tiny_text import write_tokenizer
from examples.families.tokenizers import byte_fallback_tokenizer
from tokenizers import Tokenizer, models

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.grammars import CachingGrammarCompiler
from blade_llm.sampling.guided.vocabulary import load_vocabulary


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(tmp_path_factory.mktemp("tokenizer"), merges=True)


def test_grammar_specs_do_not_share_the_exception_of_a_vocabulary_that_cannot_be_read() -> None:
    """Raised for each of them, it would hold on to all."""
    failure = GrammarSpecError("this tokenizer cannot be used")

    def load() -> llguidance.LLTokenizer:
        raise failure

    grammars = CachingGrammarCompiler(load, 272)
    errors = [grammars.compile(GrammarSpec("regex", str(index))).exception(30) for index in range(3)]
    assert {str(error) for error in errors} == {str(failure)}
    assert len({id(error) for error in [*errors, failure]}) == 4


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("json", "{"),
        GrammarSpec("json", '{"type": "nonsense"}'),
        GrammarSpec("json", "[]"),
        GrammarSpec("json", '{"type": "array", "minContains": 1, "maxlength": 3}'),
        GrammarSpec("json", '{"type": "string", "not": {"const": "a"}}'),
        GrammarSpec("regex", "(a"),
        GrammarSpec("regex", r"[^\s\S]"),
        GrammarSpec("choice", "[]"),
        GrammarSpec("choice", "[1]"),
        GrammarSpec("grammar", "start: nowhere"),
    ],
)
def test_a_grammar_spec_that_cannot_be_compiled_fails_alone(driver: Driver, spec: GrammarSpec) -> None:
    for _ in range(2):
        with pytest.raises(GrammarSpecError):
            driver.start(spec)
    assert driver.takes(GrammarSpec("choice", '["a"]'), "a")


class _Loads:
    """A vocabulary that is made when the test says so."""

    def __init__(self, vocabulary: llguidance.LLTokenizer | Exception) -> None:
        self.allowed = threading.Event()
        self.count = 0
        self._vocabulary = vocabulary

    def __call__(self) -> llguidance.LLTokenizer:
        self.count += 1
        assert self.allowed.wait(10)
        if isinstance(self._vocabulary, Exception):
            raise self._vocabulary
        return self._vocabulary


def test_compile_never_waits_and_specs_are_compiled_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    make = CachingGrammarCompiler._matcher
    monkeypatch.setattr(
        CachingGrammarCompiler, "_matcher", lambda self, *args: compiled.append(args[0]) or make(self, *args)
    )
    loads = _Loads(driver.vocabulary)
    grammars = CachingGrammarCompiler(loads, driver.vocab_size)
    spec = GrammarSpec("regex", "[0-9]+")
    waiting = [grammars.compile(spec) for _ in range(5)]
    assert not any(each.done() for each in waiting)
    loads.allowed.set()
    found = [each.result(10) for each in waiting]
    assert len({id(each) for each in found}) == 5
    assert loads.count == 1
    assert compiled == [spec]
    assert grammars.compile(spec).done()  # known: the request does not wait for a thread
    grammars.close()


def test_a_tokenizer_that_cannot_be_used_fails_every_request_and_nothing_else() -> None:
    loads = _Loads(GrammarSpecError("guided decoding is not possible"))
    loads.allowed.set()
    grammars = CachingGrammarCompiler(loads, 64)
    for value in ("a", "b"):
        with pytest.raises(GrammarSpecError, match="not possible"):
            grammars.compile(GrammarSpec("regex", value)).result(10)
    assert loads.count == 1


def test_a_slow_compilation_is_given_up(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    make = CachingGrammarCompiler._matcher

    def slow(self: CachingGrammarCompiler, spec: GrammarSpec, vocabulary: Any) -> Any:
        if spec.value == "slow":
            release.wait(10)
        return make(self, spec, vocabulary)

    monkeypatch.setattr(CachingGrammarCompiler, "_matcher", slow)
    grammars = CachingGrammarCompiler(lambda: driver.vocabulary, driver.vocab_size, seconds=0.1)
    late = grammars.compile(GrammarSpec("regex", "slow"))
    assert grammars.compile(GrammarSpec("regex", "quick")).result(10)
    with pytest.raises(GrammarSpecError, match=r"longer than the limit of 0.1 s"):
        late.result(10)
    assert [spec.value for spec in grammars._compiled] == ["quick"]  # the machine may have been busy
    release.set()
    assert grammars.compile(GrammarSpec("regex", "slow")).result(10)
    grammars.close()


def test_the_least_recently_used_grammars_are_evicted(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blade_llm.sampling.guided.grammars._MAX_GRAMMARS", 3)
    grammars = CachingGrammarCompiler(lambda: driver.vocabulary, driver.vocab_size)
    made: list[Future[Any]] = [grammars.compile(GrammarSpec("regex", letter)) for letter in "abcdeabc"]
    assert all(each.result(10) for each in made)
    assert [spec.value for spec in grammars._compiled] == ["a", "b", "c"]
    monkeypatch.setattr("blade_llm.sampling.guided.grammars._MAX_CHARACTERS", 10)
    grammars.compile(GrammarSpec("regex", "x" * 9)).result(10)
    assert [spec.value for spec in grammars._compiled] == ["c", "x" * 9]
    grammars.close()


def test_the_vocabulary_of_a_byte_fallback_tokenizer(tmp_path: Path) -> None:
    tokenizer = byte_fallback_tokenizer()
    vocabulary = load_vocabulary(write_tokenizer(tmp_path, tokenizer), 288, [2, 2, 999])
    assert vocabulary.vocab_size == 288
    assert vocabulary.eos_tokens == [2]
    assert vocabulary.decode_bytes([tokenizer.token_to_id("\u2581hello")]) == b" hello"


def test_padding_and_truncation_of_a_tokenizer_do_not_matter(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path)
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text())
    values["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    values["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                         "pad_type_id": 0, "pad_token": "<|endoftext|>"}  # fmt: skip
    path.write_text(json.dumps(values))
    assert (
        load_vocabulary(folder, 384, [2]).decode_str(load_vocabulary(folder, 384, [2]).tokenize_str("hello there"))
        == "hello there"
    )


@pytest.mark.parametrize(
    "model",
    [
        models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"),
        models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"),
        models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0),
    ],
)
def test_tokenizers_whose_tokens_stand_for_no_bytes_are_refused_with_the_reason(tmp_path: Path, model: Any) -> None:
    write_tokenizer(tmp_path, Tokenizer(model))
    with pytest.raises(GrammarSpecError, match=r"not possible with this model's tokenizer: can't determine decoder"):
        load_vocabulary(tmp_path, 32, [1])


def test_files_that_are_missing_or_broken_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(GrammarSpecError, match="is missing; give"):
        load_vocabulary(tmp_path, 32, [1])
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(GrammarSpecError, match="not possible with this model's tokenizer"):
        load_vocabulary(tmp_path, 32, [1])
    write_tokenizer(tmp_path)
    with pytest.raises(GrammarSpecError, match="no end-of-sequence token"):
        load_vocabulary(tmp_path, 384, [])
