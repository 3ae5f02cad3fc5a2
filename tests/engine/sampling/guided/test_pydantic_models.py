"""200 pydantic models: each is accepted, and what is written under the mask of its schema is an instance of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from engine_support.guided_driver import Driver, problems
from engine_support.pydantic_models import MODELS, STRICTER_THAN_THEIR_SCHEMA
from engine_support.short_walks import short_walk

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.schema import check_schema
from blade_llm.sampling.guided.validation import validate

WALKS = 2
_OTHER_ARITHMETIC = ("rate", "expression")
"""jsonschema divides binary fractions, and compiles expressions, whose format changes no output."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(tmp_path_factory.mktemp("tokenizer"), merges=True)


def _closed(schema: dict[str, Any]) -> GrammarSpec:
    return GrammarSpec("json", json.dumps({**schema, "x-blade-closed": True}))


def _held(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` without each ``uniqueItems`` that outputs are documented not to be held to."""
    unheld = frozenset(check_schema(schema))

    def without(value: Any, place: str) -> Any:
        if isinstance(value, list):
            return [without(item, f"{place}/{index}") for index, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        return {key: without(item, f"{place}/{key}") for key, item in value.items() if f"{place}/{key}" not in unheld}

    found: dict[str, Any] = without(schema, "#")
    return found


def _walk(driver: Driver, name: str, rng: np.random.Generator) -> None:
    model = MODELS[name]
    schema = model.model_json_schema()
    output = short_walk(driver, _closed(schema), rng)
    assert output.finished, (name, output.text)
    if name not in _OTHER_ARITHMETIC:
        assert problems(_held(schema), output.text) == [], (name, output.text)
    if name not in STRICTER_THAN_THEIR_SCHEMA:
        model.model_validate_json(output.text)


def test_there_are_two_hundred() -> None:
    assert len(MODELS) == 200
    assert len({json.dumps(model.model_json_schema(), sort_keys=True) for model in MODELS.values()}) == 200
    assert MODELS.keys() >= STRICTER_THAN_THEIR_SCHEMA


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_instances(driver: Driver, name: str) -> None:
    schema = MODELS[name].model_json_schema()
    validate(_closed(schema))
    validate(GrammarSpec("json", json.dumps(schema)))
    rng = np.random.default_rng(list(name.encode()))
    for _ in range(WALKS):
        _walk(driver, name, rng)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
def test_many_outputs_are_instances(driver: Driver, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name in MODELS:
        _walk(driver, name, rng)
