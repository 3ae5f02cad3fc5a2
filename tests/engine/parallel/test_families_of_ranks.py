"""Ranks of a tensor-parallel group compute what transformers computes, in every kind of step, at every position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_support.families import ROWS, Row, save_row
from engine_support.family_proof import SCENARIOS, Comparison
from engine_support.thread_ranks import thread_ranks

from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import tensor_parallel_problem

CASES = [name for name, row in ROWS.items() if row.through == "blade"]
THOROUGH = [("qwen2", 4), ("mixtral", 2), ("deepseek-v3", 4), ("olmo2", 2)]
"""Rows in every kind of step also where the long tests are not run, and ranks."""


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Row, Path, Any]:
    row, folder = ROWS[request.param], tmp_path_factory.mktemp(request.param)
    return request.param, row, folder, save_row(folder, row)


def test_each_family_in_a_batch(model: tuple[str, Row, Path, Any]) -> None:
    _, row, folder, reference = model
    compare = Comparison(thread_ranks(folder, 2, **row.runner), reference)  # type: ignore[arg-type]
    SCENARIOS["prefix_hit"](compare)
    SCENARIOS["batch_of_eight"](compare)


@pytest.mark.parametrize(("name", "size"), THOROUGH)
def test_every_kind_of_step(name: str, size: int, tmp_path: Path) -> None:
    _every_scenario(name, size, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_step_of_every_family(name: str, size: int, tmp_path: Path) -> None:
    _every_scenario(name, size, tmp_path)


def _every_scenario(name: str, size: int, folder: Path) -> None:
    row = ROWS[name]
    reference = save_row(folder, row)
    if problem := tensor_parallel_problem(read_model_config(folder), size):
        assert size == 4, problem
        pytest.skip(problem)
    compare = Comparison(thread_ranks(folder, size, **row.runner), reference)  # type: ignore[arg-type]
    for scenario in SCENARIOS.values():
        scenario(compare)
