"""An adapter beside the base model computes what it computes merged into the model: in every family, at every position,
in every kind of step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from engine_support.adapters import FORMS, KIND, ThroughRunner, merge, targets_of, write_adapter
from engine_support.families import ROWS, Row, save_row
from engine_support.family_proof import SCENARIOS, Comparison
from engine_support.tiny_models import engine_config

from blade_llm.lora.reader import read_adapter
from blade_llm.runner import build_runner

SERVED = [name for name in ROWS if name != "gpt2-modules"]
IN_EVERY_STEP = [*FORMS, *(name for name in SERVED if ROWS[name].through != "blade")]
BATCH = ["prefix_hit", "batch_of_eight"]
"""Kinds of steps of rows whose layers are as those of another one; the long tests have all."""


@pytest.fixture(scope="module", params=SERVED)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Row, Path]:
    row, folder = ROWS[request.param], tmp_path_factory.mktemp(request.param)
    save_row(folder, row)
    return row, folder


@pytest.fixture(scope="module")
def base(model: tuple[Row, Path]) -> ThroughRunner:
    """The model without adapters."""
    row, folder = model
    return ThroughRunner(build_runner(engine_config(folder, **row.runner)))


def test_merged(model: tuple[Row, Path], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """fp32: logits within 1e-4 and the greedy tokens, with all layers that take adapters: of each form of layers in
    every kind of step, of other rows in a batch."""
    name = request.node.callspec.params["model"]
    _compare_with_merged(model, tmp_path, SCENARIOS if name in IN_EVERY_STEP else BATCH)


@pytest.mark.soak
def test_merged_in_every_kind_of_step(model: tuple[Row, Path], tmp_path: Path) -> None:
    _compare_with_merged(model, tmp_path, SCENARIOS)


def _compare_with_merged(model: tuple[Row, Path], root: Path, scenarios: Iterable[str]) -> None:
    row, folder = model
    impl = row.runner.get("model_impl", "auto")
    targets = targets_of(folder, impl)
    adapter = write_adapter(root / "adapter", targets)
    merged = merge(folder, adapter, root / "merged", impl)
    runner = build_runner(engine_config(folder, enable_lora=True, **row.runner))
    compare = Comparison(runner, ThroughRunner(build_runner(engine_config(merged, **row.runner))))
    weights = read_adapter(adapter, targets, max_rank=16, dtype=torch.float32)
    compare.driver.place_adapter(2, weights)
    compare.driver.adapter = 2
    for scenario in scenarios:
        SCENARIOS[scenario](compare)


@pytest.mark.parametrize("kind", [kind for kind in KIND if kind != "every layer"])
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(name, marks=[] if name in FORMS else pytest.mark.soak)
        for name, row in ROWS.items()
        if row.through == "blade"  # of modules the layers have other names than those of kinds
    ],
    indirect=True,
    scope="module",
)
def test_each_kind(model: tuple[Row, Path], base: ThroughRunner, tmp_path: Path, kind: str) -> None:
    """Of each kind alone, so that no other's effect hides it."""
    row, folder = model
    impl = row.runner.get("model_impl", "auto")
    targets = targets_of(folder, impl)
    if not any(KIND[kind](place) for place in targets.linears):
        pytest.skip("its MLPs are experts")
    adapter = write_adapter(tmp_path / "adapter", targets, wanted=KIND[kind], size=1.0)
    merged = merge(folder, adapter, tmp_path / "merged", impl)
    runner = build_runner(engine_config(folder, enable_lora=True, **row.runner))
    compare = Comparison(runner, ThroughRunner(build_runner(engine_config(merged, **row.runner))))
    compare.driver.place_adapter(1, read_adapter(adapter, targets, max_rank=16, dtype=torch.float32))
    compare.driver.adapter = 1
    tokens = list(range(2, 40))
    compare.enter(0, tokens)
    compare.step({0: 30})
    compare.step({0: 8})
    compare.check(0)
    ours = torch.stack([compare.computed[0][position] for position in range(len(tokens))])
    assert float((ours - base(torch.tensor([tokens])).logits[0]).abs().max()) > 0.01, "the adapter changes nothing"
