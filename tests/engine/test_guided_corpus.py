"""Answers drawn at random under hundreds of schemas: every finished one validates, every cut one can go on."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from engine_support.canonical_json import canonical
from engine_support.guided_driver import Driver, problems
from engine_support.hard_schemas import EMPLOYEE, HARD
from engine_support.schemas import has_references, random_schema, with_unsupported
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema

from blade_llm.sampling.guided.errors import StructureError
from blade_llm.sampling.guided.validation import validate
from blade_llm.sampling.structure import Structure

RANDOM = 520


@pytest.fixture(scope="module", params=[False, True], ids=["bytes", "merges"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(tmp_path_factory.mktemp("tokenizer"), merges=request.param)


def _structure(schema: Any) -> Structure:
    return Structure("json", json.dumps(schema))


def _check(driver: Driver, schema: dict[str, Any], rng: np.random.Generator, limit: int = 600) -> bool:
    """One answer; returns whether it finished."""
    structure = _structure(schema)
    answer = driver.answer(structure, rng, limit)
    if answer.finished:
        assert problems(schema, answer.text) == [], (schema, answer.text)
    else:
        assert driver.goes_on(structure, answer.token_ids), schema
    return answer.finished


@pytest.mark.parametrize("name", HARD)
def test_hard_schemas(driver: Driver, name: str) -> None:
    validate(_structure(HARD[name]))
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
            validate(_structure(schema))
        except StructureError as error:
            if "nsatisfiable" not in str(error) and "for numbers" not in str(error):
                raise AssertionError(schema) from error
            continue
        found.append(schema)
    return found


def test_random_schemas(driver: Driver) -> None:
    rng = np.random.default_rng(11)
    finished = [_check(driver, schema, rng) for schema in _random_schemas(2024, RANDOM)]
    assert sum(finished) >= 0.95 * RANDOM


def test_cut_answers_can_go_on(driver: Driver) -> None:
    """Cut after every token of an answer, and cut at random in the documented schema, whose strings have no end."""
    rng = np.random.default_rng(3)
    for schema in _random_schemas(5, 20):
        structure = _structure(schema)
        answer = driver.answer(structure, rng)
        for length in range(len(answer.token_ids)):
            assert driver.goes_on(structure, answer.token_ids[:length])
    for limit in (1, 2, 17, 90, 200):
        _check(driver, EMPLOYEE, rng, limit)


@settings(
    max_examples=250,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(data=st.data())
def test_every_instance_is_an_answer(driver: Driver, data: st.DataObject) -> None:
    """Instances as hypothesis-jsonschema makes them, which knows nothing of our grammars."""
    schema = data.draw(st.sampled_from(_plain_schemas()))
    value = data.draw(from_schema(schema))
    text = canonical(schema, value)
    assume(json.loads(text) == value)  # else it has keys that are not listed
    assert driver.takes(_structure(schema), text), (schema, text)


@cache
def _plain_schemas() -> list[dict[str, Any]]:
    """Without expressions, whose dialects differ, and without recursion, which instances have no end of."""
    found = _random_schemas(31, 200)
    return [schema for schema in found if not any(word in json.dumps(schema) for word in ("pattern", "format", '"#"'))]


def test_an_unsupported_keyword_is_refused_wherever_it_stands() -> None:
    rng = random.Random(17)
    for schema in _random_schemas(99, 200):
        if has_references(schema):
            continue
        wrong = with_unsupported(rng, schema)
        with pytest.raises(StructureError, match=r"not supported|must be|did you mean"):
            validate(_structure(wrong))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_many_random_schemas(driver: Driver, seed: int) -> None:
    rng = np.random.default_rng(seed)
    finished = [_check(driver, schema, rng) for schema in _random_schemas(seed, 1000)]
    assert sum(finished) >= 950
