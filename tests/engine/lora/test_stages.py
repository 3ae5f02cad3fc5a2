"""A pipeline stage reads its layers' part of an adapter, and judges the whole as all others do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_support.adapters import targets_of, write_adapter
from engine_support.tiny_models import save_model

from blade_llm.kernels.lora import Factors
from blade_llm.lora.errors import AdapterError
from blade_llm.lora.reader import read_adapter
from blade_llm.lora.targets import Targets
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import rank_model
from blade_llm.parallel.layout import RankLayout

MODULE = "model.layers.2.mlp.down_proj"
"""One of the last stage."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    save_model(folder, "llama", num_hidden_layers=3)
    return folder


def of_stages(folder: Path) -> list[Targets]:
    whole = read_model_config(folder)
    return [Targets.of(rank_model(whole, RankLayout(1, 3), rank), whole) for rank in range(3)]


def test_stages_together_have_the_whole(folder: Path, tmp_path: Path) -> None:
    whole = targets_of(folder)
    read = read_adapter(write_adapter(tmp_path, whole), whole, max_rank=16, dtype=torch.float32)
    parts = [read_adapter(tmp_path, targets, max_rank=16, dtype=torch.float32) for targets in of_stages(folder)]
    assert {part.digest for part in parts} == {read.digest}
    assert sum(part.nbytes for part in parts) == read.nbytes
    for stage, part in enumerate(parts):
        for place, factors in part.factors.items():
            expected = read.factors[place.replace("layers.0", f"layers.{stage}")]
            assert torch.equal(factors.a, expected.a)
            assert all(torch.equal(*pair) for pair in zip(_b(factors), _b(expected), strict=True))


def _b(factors: Factors) -> list[torch.Tensor]:
    return [each.b for each in factors.slices]


def test_one_for_another_stage_has_nothing_here(folder: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path, targets_of(folder), modules=[MODULE])
    read = [read_adapter(tmp_path, targets, max_rank=16, dtype=torch.float32) for targets in of_stages(folder)]
    assert [list(each.factors) for each in read] == [[], [], ["layers.0.mlp.down"]]
    assert {each.rank for each in read} == {8}


def test_all_stages_refuse_what_one_refuses(folder: Path, tmp_path: Path) -> None:
    """Layers that there are not, and weights that are missing."""
    targets = targets_of(folder)
    write_adapter(tmp_path / "other", targets)
    config = tmp_path / "other/adapter_config.json"
    config.write_text(config.read_text().replace("8", "9", 1))
    write_adapter(tmp_path / "part", targets, modules=[MODULE], target_modules=["down_proj"])
    for name, says in (("other", "do not belong together"), ("part", "the weights of 2 modules .* are missing")):
        for each in (targets, *of_stages(folder)):
            with pytest.raises(AdapterError, match=says):
                read_adapter(tmp_path / name, each, max_rank=16, dtype=torch.float32)
    for each in of_stages(folder):
        with pytest.raises(AdapterError, match=r"this model has no layer model\.layers\.3"):
            each.find("model.layers.3.mlp.down_proj")
        with pytest.raises(AdapterError, match="lm_head takes no adapter"):
            each.find("lm_head")
