"""Objects that several keywords describe together, at random: every output that is allowed follows the schema."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import permutations, product
from typing import Any, Final

import pytest
from engine_support.guided_driver import Driver
from jsonschema import Draft202012Validator

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.text import with_closed_objects
from blade_llm.sampling.guided.validation import validate

KEYS: Final = "abc"
LEAVES: Final[tuple[Any, ...]] = (
    {"type": "integer"}, {"type": "string"}, {"enum": [1, "x"]}, {"const": 1}, {"const": 1.0}, True,
    {"type": ["string", "null"]}, {"$ref": "#/$defs/A"},
)  # fmt: skip
NAMES: Final = ({"enum": ["a", "b"]}, {"pattern": "^a"}, {"maxLength": 1}, {"const": "a"})


def instances() -> Iterator[Any]:
    """Small ones, with keys in any order."""
    yield from (1, "x", None, [1])
    for count in range(4):
        for keys in permutations(KEYS, count):
            for values in product((1, "x", {"a": 1})[: 3 if count < 3 else 2], repeat=count):
                yield dict(zip(keys, values, strict=True))


def objects(rng: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object"} if rng.random() < 0.85 else {}
    if rng.random() < 0.85:
        made["properties"] = {
            key: schema(rng, depth - 1) if depth > 0 and rng.random() < 0.2 else rng.choice(LEAVES)
            for key in rng.sample(KEYS, rng.randrange(3))
        }
    if rng.random() < 0.6:
        made["required"] = rng.sample(KEYS, rng.randrange(3))
    if rng.random() < 0.35:
        made |= rng.choice(
            [{"additionalProperties": False}, {"additionalProperties": LEAVES[0]}, {"unevaluatedProperties": False}]
        )
    for chance, more in (
        (0.1, {"patternProperties": {"^[bc]$": rng.choice(LEAVES)}}),
        (0.1, {"propertyNames": rng.choice(NAMES)}),
        (0.08, {"minProperties": rng.randrange(3)}),
        (0.08, {"maxProperties": rng.randrange(3)}),
    ):
        made |= more if rng.random() < chance else {}
    return made


def schema(rng: random.Random, depth: int) -> dict[str, Any]:
    if depth <= 0:
        return objects(rng, 0)
    keyword = rng.choice(["", "", "allOf", "anyOf", "oneOf", "oneOf", "$ref"])
    if keyword == "":
        return objects(rng, depth)
    made: dict[str, Any] = {"$ref": rng.choice(["#/$defs/A", "#/$defs/B"])}
    if keyword != "$ref":
        made = {keyword: [schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}
    return objects(rng, depth - 1) | made if rng.random() < 0.3 else made


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(tmp_path_factory.mktemp("tokenizer"), merges=False)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 40))])
def test_what_is_allowed_follows_the_schema(driver: Driver, seed: int, closed: bool) -> None:
    rng, tried = random.Random(seed), 0
    values = list(instances())
    while tried < 12:
        root = {**schema(rng, 2), "$defs": {"A": objects(rng, 0), "B": objects(rng, 1)}}
        spec = GrammarSpec("json", json.dumps(root))
        spec = with_closed_objects(spec) if closed else spec
        try:
            validate(spec)
        except GrammarSpecError:
            continue
        tried += 1
        valid = Draft202012Validator(root).is_valid
        wrong = [value for value in values if not valid(value) and driver.takes(spec, json.dumps(value))]
        assert not wrong, (root, wrong)
