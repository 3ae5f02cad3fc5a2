"""Ranks that have some experts whole compute what transformers computes, in every kind of step, at every position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.families import ROWS, save_row
from engine_support.family_proof import SCENARIOS, Comparison
from engine_support.runner_driver import Driver, prompt_of
from engine_support.thread_ranks import thread_ranks

from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import pipeline_parallel_problem, tensor_parallel_problem

MIXTURES = [name for name, row in ROWS.items() if row.through == "blade" and "experts" in row.shows]
THOROUGH = ["mixtral", "qwen2-moe-some", "deepseek-v3"]
"""Of each kind of experts one, in every kind of step also where the long tests are not run; of 6 experts among 4 ranks
some have two."""
LAYOUTS = [(2, 1), (4, 1), (2, 2)]
"""Tensor ranks of each stage, stages."""


def compare(name: str, size: int, stages: int, folder: Path, *scenarios: str) -> None:
    row = ROWS[name]
    reference = save_row(folder, row)
    config = read_model_config(folder)
    assert tensor_parallel_problem(config, size, expert_parallel=True) is None
    assert pipeline_parallel_problem(config, stages) is None
    settings: dict[str, Any] = {"enable_expert_parallel": True, **row.runner}
    comparison = Comparison(thread_ranks(folder, size, stages, **settings), reference)  # type: ignore[arg-type]
    for scenario in scenarios or SCENARIOS:
        SCENARIOS[scenario](comparison)


@pytest.mark.parametrize(
    ("name", "size", "stages"),
    [*((name, 2, 2) for name in MIXTURES), *((name, 4, 1) for name in MIXTURES if name not in THOROUGH)],
)
def test_each_family_in_a_batch(name: str, size: int, stages: int, tmp_path: Path) -> None:
    compare(name, size, stages, tmp_path, "prefix_hit", "batch_of_eight")


@pytest.mark.parametrize("name", THOROUGH)
def test_every_kind_of_step(name: str, tmp_path: Path) -> None:
    compare(name, 4, 1, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(("size", "stages"), LAYOUTS)
@pytest.mark.parametrize("name", MIXTURES)
def test_every_kind_of_step_of_every_family(name: str, size: int, stages: int, tmp_path: Path) -> None:
    compare(name, size, stages, tmp_path)


@pytest.mark.parametrize("name", ["mixtral", "deepseek-v3"])
def test_tokens_are_those_of_one_rank_and_of_divided_experts(name: str, tmp_path: Path) -> None:
    save_row(tmp_path, ROWS[name])
    tokens = []
    for size, experts in ((1, False), (2, False), (2, True), (4, True)):
        settings: dict[str, Any] = {"enable_expert_parallel": experts, **ROWS[name].runner}
        driver = Driver(thread_ranks(tmp_path, size, **settings))  # type: ignore[arg-type]
        tokens.append([driver.generate(number, prompt_of(40 + number, number), 16) for number in range(3)])
    assert all(each == tokens[0] for each in tokens)


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_quantised_experts_are_those_of_one_rank(quant: str, tmp_path: Path) -> None:
    """A whole expert has the scales that it has alone: what ranks add up for a token of one expert is the same in every
    bit."""
    save_row(tmp_path, ROWS["mixtral"])
    hidden, generator = read_model_config(tmp_path).hidden_size, torch.Generator().manual_seed(0)
    x, ids = torch.randn(8, hidden, generator=generator).bfloat16(), torch.arange(8, dtype=torch.int32)[:, None]

    def computed(size: int) -> list[torch.Tensor]:
        settings: dict[str, Any] = {"enable_expert_parallel": size > 1, "quant": quant, "dtype": "bfloat16"}
        ranks = thread_ranks(tmp_path, size, **settings)
        models: list[Any] = [runner.model for runner in ranks.runners]
        layers = zip(*(model.layers for model in models), strict=True)
        return [sum(each.mlp.experts(x, ids, torch.ones(8, 1)) for each in layer) for layer in layers]

    for one, several in zip(computed(1), computed(2), strict=True):
        assert one.any(dim=1).all()
        assert torch.equal(one, several)
