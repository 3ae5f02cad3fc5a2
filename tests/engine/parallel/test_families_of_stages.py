"""Stages of a pipeline compute what transformers computes, in every kind of step, at every position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_support.families import ROWS, Row, save_row
from engine_support.family_proof import SCENARIOS, Comparison
from engine_support.thread_ranks import thread_ranks

from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import pipeline_parallel_problem, tensor_parallel_problem

CASES = [name for name, row in ROWS.items() if row.through == "blade"]
THOROUGH = [("qwen2", 2, 2), ("mixtral", 1, 3), ("deepseek-v3", 1, 2), ("deepseek-v3", 2, 2)]
"""Rows in every kind of step also where the long tests are not run, tensor ranks of each stage, stages."""
LAYOUTS = [(1, 2), (1, 3), (2, 2)]
"""Tensor ranks of each stage, stages."""


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Row, Path, Any]:
    row, folder = ROWS[request.param], tmp_path_factory.mktemp(request.param)
    return request.param, row, folder, save_row(folder, row)


def test_each_family_in_a_batch(model: tuple[str, Row, Path, Any]) -> None:
    _, row, folder, reference = model
    compare = Comparison(thread_ranks(folder, 1, 2, **row.runner), reference)  # type: ignore[arg-type]
    SCENARIOS["prefix_hit"](compare)
    SCENARIOS["batch_of_eight"](compare)


@pytest.mark.parametrize(("name", "size", "stages"), THOROUGH)
def test_every_kind_of_step(name: str, size: int, stages: int, tmp_path: Path) -> None:
    _every_scenario(name, size, stages, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(("size", "stages"), LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_step_of_every_family(name: str, size: int, stages: int, tmp_path: Path) -> None:
    _every_scenario(name, size, stages, tmp_path)


def _every_scenario(name: str, size: int, stages: int, folder: Path) -> None:
    row = ROWS[name]
    reference = save_row(folder, row)
    config = read_model_config(folder)
    assert tensor_parallel_problem(config, size) is None
    if problem := pipeline_parallel_problem(config, stages):
        assert config.num_layers < stages, problem
        pytest.skip(problem)
    compare = Comparison(thread_ranks(folder, size, stages, **row.runner), reference)  # type: ignore[arg-type]
    for scenario in SCENARIOS.values():
        scenario(compare)
