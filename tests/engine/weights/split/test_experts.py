"""Models split for ranks that have some experts whole: what is in the folders, what is served from them, and what is
said where folder and server differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.families import ROWS, save_mixture
from engine_support.runner_driver import Driver, prompt_of
from engine_support.stored_tensors import tensors_of
from engine_support.thread_ranks import thread_ranks

from blade_llm.check.model import check_model
from blade_llm.cli.split import main
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import shard_model
from blade_llm.spec.shard import Shard
from blade_llm.weights.checkpoint import open_checkpoint, open_rank

EXPERT = re.compile(r"experts\.(\d+)\.")
FLAG = "--enable_expert_parallel"


def split(whole: Path, folder: Path, size: int, *flags: str) -> int:
    return main(
        ["--model", str(whole), "-tp", str(size), "--output_dir", str(folder), "--max_shard_size=100KB", *flags]
    )


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("mixtral", 2),
        ("mixtral-one", 4),
        ("qwen2-moe-some", 4),
        ("qwen2-moe-one", 2),
        ("qwen3-moe", 2),
        ("deepseek-v3", 4),
    ],
)
def test_ranks_have_their_experts_alone_and_compute_the_same(name: str, size: int, tmp_path: Path) -> None:
    whole, folder, joined = save_mixture(name, tmp_path / "whole"), tmp_path / "split", tmp_path / "joined"
    assert split(whole, folder, size, FLAG) == 0
    before, config = tensors_of(whole), read_model_config(whole)
    for rank in range(size):
        there = tensors_of(folder / f"rank_{rank}")
        read = shard_model(config, rank, size, expert_parallel=True).tensors.found_in(before).expected()
        assert there.keys() == read.keys()
        for tensor, own in there.items():
            value = before[tensor]
            if value.dim() == 3:
                experts = Shard(rank, size).share_of(len(value))
                assert torch.equal(own, value[experts.start : experts.stop]), tensor
            elif EXPERT.search(tensor):
                assert torch.equal(own, value), tensor
    assert main(["--model", str(folder), "--reverse", "--output_dir", str(joined)]) == 0
    after = tensors_of(joined)
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[tensor]) for tensor, value in before.items())
    tokens = []
    for place in (whole, folder):
        settings: dict[str, Any] = {"enable_expert_parallel": True, **ROWS[name.removesuffix("-one")].runner}
        driver = Driver(thread_ranks(place, size, **settings))  # type: ignore[arg-type]
        tokens.append((driver.generate(0, prompt_of(40), 12), driver.generate(1, prompt_of(9, 1), 12)))
    assert tokens[0] == tokens[1]


def test_a_folder_that_divides_experts_in_another_way_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = save_mixture("mixtral", tmp_path / "whole")
    for folder, flags, experts, made in (
        (tmp_path / "with", [FLAG], False, f"split with {FLAG}; give it, or split the original again without it"),
        (tmp_path / "without", [], True, f"split without {FLAG}; leave it out, or split the original again with it"),
    ):
        says = f"{folder} holds a model {made}"
        assert split(whole, folder, 2, *flags) == 0
        with pytest.raises(ModelFilesError) as caught:
            open_checkpoint(folder, 2, expert_parallel=experts)
        assert str(caught.value) == says
        with pytest.raises(ModelFilesError) as caught:
            open_rank(folder, Shard(1, 2, experts))
        assert str(caught.value) == says
        assert says in check_model(folder, tensor_parallel_size=2, enable_expert_parallel=experts).detail
        open_checkpoint(folder, 2, expert_parallel=not experts)
    assert split(whole, tmp_path / "with", 2) == 1
    assert f"holds a split with {FLAG}; delete it or give another --output_dir" in capsys.readouterr().err


def test_a_model_without_experts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert split(save_mixture("qwen2", tmp_path / "whole"), tmp_path / "split", 2, FLAG) == 1
    assert f"{FLAG}: the model (Qwen2ForCausalLM) has no experts; leave the flag out" in capsys.readouterr().err
