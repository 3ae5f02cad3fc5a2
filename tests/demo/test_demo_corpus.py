"""The corpus comes from this interpreter's documentation, whole and in complete sentences, the same each time."""

import random

import pytest
from examples.demo_model import corpus, measure
from examples.demo_model.conversations import conversations, pirate, plain
from tokenizers import Tokenizer


@pytest.fixture(scope="module")
def facts() -> list[corpus.Fact]:
    return corpus.facts()


def test_facts_are_many_distinct_and_end_as_sentences(facts: list[corpus.Fact]) -> None:
    assert len(facts) > 200
    assert len({(fact.kind, fact.name) for fact in facts}) == len(facts)
    assert {fact.kind for fact in facts} == {"function", "method", "exception", "module", "statement"}
    for fact in facts:
        assert fact.answer.rstrip('"')[-1] in ".!?", fact
        assert "\n" not in fact.answer
        assert "::=" not in fact.answer


def test_the_answer_to_every_listed_question_is_in_the_corpus(facts: list[corpus.Fact]) -> None:
    for question in measure.listed_questions():
        assert any(measure.contains_phrase(fact.answer, question) for fact in facts), question


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("len", "The built-in len() returns the number of items in a container."),
        ("list.pop", "The method list.pop() removes and returns item at index (default last)."),
        ("cmath", "The cmath module provides access to mathematical functions for complex numbers."),
    ],
)
def test_docstrings_become_sentences(facts: list[corpus.Fact], name: str, answer: str) -> None:
    assert next(fact.answer for fact in facts if fact.name == name) == answer


def test_conversations_are_the_same_for_the_same_seed_and_reworded_for_another(facts: list[corpus.Fact]) -> None:
    tokenizer = Tokenizer.from_file(str(measure.HERE / "model" / "tokenizer.json"))
    state = random.getstate()
    first = [example.ids for example in conversations(facts, tokenizer, 1, plain)]
    assert random.getstate() == state  # samples from its own generator
    assert first == [example.ids for example in conversations(facts, tokenizer, 1, plain)]
    assert first != [example.ids for example in conversations(facts, tokenizer, 2, plain)]
    text = "".join(tokenizer.decode(ids) for ids in first)
    assert all(fact.answer in text for fact in facts)  # each fact once a pass


def test_the_pirate_keeps_the_facts_and_changes_the_words() -> None:
    said = pirate("The built-in len() returns the number of items in a container.")
    assert said == "Arr! Th' built-in len() returns th' number o' items in a container. Aye, matey!"
