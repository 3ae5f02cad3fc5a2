"""The schemas that client libraries make of pydantic models are accepted, and outputs are instances of the models."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clients_support.environments import python_of
from engine_support import client_schemas
from engine_support.guided_driver import Driver
from engine_support.pydantic_models import MODELS, STRICTER_THAN_THEIR_SCHEMA
from engine_support.short_walks import short_walk

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.text import with_closed_objects
from blade_llm.sampling.guided.validation import validate

ROOT = Path(__file__).parents[4]


def _schemas(library: str) -> dict[str, Any]:
    printed = subprocess.run(
        [str(python_of("core")), client_schemas.__file__, library],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        check=True,
    )
    schemas: dict[str, Any] = json.loads(printed.stdout)
    return schemas


@pytest.mark.clients
@pytest.mark.parametrize("library", client_schemas.MAKERS)
def test_what_libraries_make_of_models(library: str, tmp_path: Path) -> None:
    driver, rng = Driver(tmp_path, merges=True), np.random.default_rng(8)
    made = _schemas(library)
    assert made.keys() == MODELS.keys()
    usable = {name: found["schema"] for name, found in made.items() if "schema" in found}
    assert len(usable) >= 195, [found for found in made.values() if "error" in found]
    for name, schema in usable.items():
        spec = with_closed_objects(GrammarSpec("json", json.dumps(schema)))
        validate(spec)
        output = short_walk(driver, spec, rng)
        assert output.finished, (name, output.text)
        if name not in STRICTER_THAN_THEIR_SCHEMA:
            MODELS[name].model_validate_json(output.text)
