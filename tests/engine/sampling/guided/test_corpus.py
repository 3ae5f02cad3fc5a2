"""Outputs sampled at random under hundreds of schemas: every finished one validates, every cut one can go on."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from engine_support.guided_driver import Driver, problems
from engine_support.hard_schemas import EMPLOYEE, HARD
from engine_support.instances import random_instance, text_of
from engine_support.schemas import has_references, random_schema, with_unsupported

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.validation import validate

RANDOM = 520


@pytest.fixture(scope="module", params=[False, True], ids=["bytes", "merges"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(tmp_path_factory.mktemp("tokenizer"), merges=request.param)


def _grammar_spec(schema: Any) -> GrammarSpec:
    return GrammarSpec("json", json.dumps(schema))


def _check(driver: Driver, schema: dict[str, Any], rng: np.random.Generator, limit: int = 600) -> bool:
    """One output; returns whether it finished."""
    spec = _grammar_spec(schema)
    output = driver.sample(spec, rng, limit)
    if output.finished:
        assert problems(schema, output.text) == [], (schema, output.text)
    else:
        assert driver.goes_on(spec, output.token_ids), schema
    return output.finished


@pytest.mark.parametrize("name", HARD)
def test_hard_schemas(driver: Driver, name: str) -> None:
    validate(_grammar_spec(HARD[name]))
    rng = np.random.default_rng(7)
    finished = [_check(driver, HARD[name], rng) for _ in range(8)]
    assert sum(finished) >= 7


def _random_schemas(seed: int, count: int) -> list[dict[str, Any]]:
    """Those of the generated schemas that something satisfies."""
    rng = random.Random(seed)
    found: list[dict[str, Any]] = []
    while len(found) < count:
        schema = random_schema(rng)
        try:
            validate(_grammar_spec(schema))
        except GrammarSpecError as error:
            if "nsatisfiable" not in str(error) and "for numbers" not in str(error):
                raise AssertionError(schema) from error
            continue
        found.append(schema)
    return found


def test_random_schemas(driver: Driver) -> None:
    rng = np.random.default_rng(11)
    finished = [_check(driver, schema, rng) for schema in _random_schemas(2024, RANDOM)]
    assert sum(finished) >= 0.95 * RANDOM


def test_cut_outputs_can_go_on(driver: Driver) -> None:
    """Cut after every token of an output, and cut at random in the documented schema, whose strings have no end."""
    rng = np.random.default_rng(3)
    for schema in _random_schemas(5, 20):
        spec = _grammar_spec(schema)
        output = driver.sample(spec, rng)
        for length in range(len(output.token_ids)):
            assert driver.goes_on(spec, output.token_ids[:length])
    for limit in (1, 2, 17, 90, 200):
        _check(driver, EMPLOYEE, rng, limit)


def test_every_instance_is_an_output(driver: Driver) -> None:
    """Not only valid outputs: all of them, but for the order of keys and the ways to write a value."""
    rng, checked = random.Random(31), 0
    for schema in _random_schemas(31, 400):
        text = json.dumps(schema)
        if "pattern" in text or "format" in text:  # nothing here makes strings for them
            continue
        if "number" in text and "exclusive" in text:  # llguidance leaves out some values near excluded fractions
            continue
        for _ in range(4):
            value = random_instance(rng, schema, schema)
            if problems(schema, text_of(value)):
                continue
            assert driver.takes(_grammar_spec(schema), text_of(value)), (schema, text_of(value))
            checked += 1
    assert checked > 500


def test_a_key_in_another_spelling_is_no_way_around_its_schema(driver: Driver) -> None:
    """A reader of the output sees one key, and the last of its values."""
    tried, rng = 0, np.random.default_rng(41)
    for closed in _random_schemas(41, 120):
        if closed.get("type") != "object" or "properties" not in closed:
            continue
        schema = {**closed, "additionalProperties": {"type": ["string", "null"]}}
        output = driver.sample(_grammar_spec(schema), rng)
        if not output.finished:
            continue
        assert problems(schema, output.text) == []
        for name in schema["properties"]:
            spelled = "".join(f"\\u{ord(letter):04x}" for letter in name)
            for wrong in ("null", '"x"'):
                text = output.text[:-1] + (", " if output.text != "{}" else "") + f'"{spelled}": {wrong}' + "}"
                assert not driver.takes(_grammar_spec(schema), text) or not problems(schema, text), (schema, text)
                tried += 1
    assert tried > 40


def test_an_unsupported_keyword_is_refused_wherever_it_stands() -> None:
    rng = random.Random(17)
    for schema in _random_schemas(99, 200):
        if has_references(schema):
            continue
        wrong = with_unsupported(rng, schema)
        with pytest.raises(GrammarSpecError, match=r"not supported|must be|did you mean"):
            validate(_grammar_spec(wrong))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_many_random_schemas(driver: Driver, seed: int) -> None:
    rng = np.random.default_rng(seed)
    finished = [_check(driver, schema, rng) for schema in _random_schemas(seed, 1000)]
    assert sum(finished) >= 950
