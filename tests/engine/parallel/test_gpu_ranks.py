"""Ranks of a divided model as threads on one GPU: what transformers computes, by each rank's shards and the kernels at
their shapes. All but NCCL and graphs, which need a process each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.families import ROWS, save_row
from engine_support.family_proof import PROMPT, SCENARIOS, Comparison
from engine_support.runner_driver import prompt_of
from engine_support.thread_ranks import thread_ranks
from engine_support.tiny_models import engine_config, reference_logits

from blade_llm.runner import build_runner, device, torch_runner

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
CASES = [name for name, row in ROWS.items() if row.through == "blade"]
THOROUGH = ["qwen2", "mixtral", "deepseek-v3", "olmo2"]
"""Rows in every kind of step."""
LAYOUTS = [(2, 1), (4, 1), (1, 2), (2, 2)]
"""Tensor ranks of each stage, stages. Of four ranks some have copies of key heads."""
EAGER = {"in_turns": True, "disable_cuda_graph": True}
"""Threads meet on the host, which a graph cannot repeat."""


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks are on the same device, however many there are."""
    monkeypatch.setattr(torch_runner, "choose_device", lambda rank=0: device.choose_device())


def compared(name: str, size: int, stages: int, folder: Path) -> Comparison:
    reference = save_row(folder, ROWS[name])
    ranks = thread_ranks(folder, size, stages, **EAGER, **ROWS[name].runner)
    assert {runner.device.type for runner in ranks.runners} == {device.choose_device().type}
    return Comparison(ranks, reference)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [pytest.param(name, marks=GPU) for name in CASES])
def test_each_family_by_two_ranks(name: str, tmp_path: Path) -> None:
    compare = compared(name, 2, 1, tmp_path)
    SCENARIOS["prefix_hit"](compare)
    SCENARIOS["batch_of_eight"](compare)


@pytest.mark.parametrize(("size", "stages"), [pytest.param(*layout, marks=GPU) for layout in LAYOUTS])
@pytest.mark.parametrize("name", THOROUGH)
def test_every_kind_of_step(name: str, size: int, stages: int, tmp_path: Path) -> None:
    compare = compared(name, size, stages, tmp_path)
    for scenario in SCENARIOS.values():
        scenario(compare)


@pytest.mark.parametrize("name", ["qwen2", "mixtral"])
def test_in_bf16_two_ranks_are_as_near_to_fp32_as_one(name: str, tmp_path: Path) -> None:
    """At most positions: at some a router that is all but undecided takes another expert."""
    row, tokens = ROWS[name], prompt_of(PROMPT, seed=7)
    exact = reference_logits(save_row(tmp_path, row), tokens)
    options: dict[str, Any] = {"dtype": "bfloat16", **row.runner}

    def distance(runner: Any) -> float:
        compare = Comparison(runner, None)
        compare.enter(0, tokens)
        compare.step({0: 40})
        compare.step({0: PROMPT - 40})
        found = torch.stack([compare.computed[0][position] for position in range(PROMPT)])
        return float((found - exact).square().mean(1).sqrt().median())

    alone = distance(build_runner(engine_config(tmp_path, disable_cuda_graph=True, **options)))
    assert 0 < distance(thread_ranks(tmp_path, 2, **EAGER, **options)) < 1.5 * alone
