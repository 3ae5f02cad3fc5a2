"""Models of all kinds of tensors, split and joined again, and served by ranks from their own folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_support.draft_recorder import Recorder
from engine_support.families import ROWS, in_one_tensor, save_row
from engine_support.feature_load import core_for, free_drafts, run
from engine_support.heads import MTP_ROWS, MTPReference, save_with_mtp
from engine_support.runner_driver import Driver, prompt_of
from engine_support.stored_tensors import same_bytes, tensors_of
from engine_support.thread_ranks import thread_groups, thread_ranks
from safetensors.torch import save_file

from blade_llm.cli.split import main
from blade_llm.config import SpeculativeConfig
from blade_llm.engine.messages import GenerateRequest
from blade_llm.models.heads.mtp import find_mtp
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import shard_model, tensor_parallel_problem
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.weights import loader
from blade_llm.weights.sources import SafetensorsWeights

FAMILIES = [
    *("qwen2", "mixtral", "deepseek-v3", "gpt2", "bloom", "chatglm", "qwen2-moe", "internlm2", "falcon", "olmo2"),
    *("qwen2.5-vl", "qwen3-vl", "internvl-llama"),
]
AMONG_4 = ["qwen2", "deepseek-v3", "mixtral-one"]
"""Divided among four ranks also where the long tests are not run."""
EXTRA = {
    "model.layers.0.self_attn.rotary_emb.inv_freq": torch.rand(4),
    "unused.table": torch.randint(0, 9, (3, 5), dtype=torch.int64),
    "unused.flags": torch.rand(3) > 0.5,
    "unused.empty": torch.empty(0, 4),
}
"""Tensors of other types that no part of the model takes."""


def saved(name: str, folder: Path) -> Path:
    """A model of the family with a few more tensors."""
    row = ROWS[name.removesuffix("-one")]
    save_row(folder, row)
    if name.endswith("-one"):
        in_one_tensor(folder, folder / "one")
        folder = folder / "one"
    save_file({**tensors_of(folder), **EXTRA}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, marks=[] if size == 2 or name in AMONG_4 else pytest.mark.soak)
        for name in (*FAMILIES, "mixtral-one")
        for size in (2, 4)
    ],
)
def test_ranks_compute_the_same_and_join_to_the_same_bytes(name: str, size: int, tmp_path: Path) -> None:
    whole, split, joined = saved(name, tmp_path / "whole"), tmp_path / "split", tmp_path / "joined"
    if problem := tensor_parallel_problem(read_model_config(whole), size):
        assert size == 4
        pytest.skip(problem)
    common = ["--max_shard_size", "100KB"]
    assert main(["--model", str(whole), "-tp", str(size), "--output_dir", str(split), *common]) == 0
    assert main(["--model", str(split), "--reverse", "--output_dir", str(joined), *common]) == 0
    before, after = tensors_of(whole), tensors_of(joined)
    assert before.keys() == after.keys()
    for tensor, value in before.items():
        assert same_bytes(value, after[tensor]), tensor
    assert (joined / "config.json").read_bytes() == (whole / "config.json").read_bytes()
    tokens = []
    for folder in (whole, split):
        driver = Driver(thread_ranks(folder, size, **ROWS[name.removesuffix("-one")].runner))  # type: ignore[arg-type]
        tokens.append((driver.generate(0, prompt_of(40), 12), driver.generate(1, prompt_of(9, 1), 12)))
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("name", ["qwen2", "mixtral", "deepseek-v3"])
def test_stages_of_ranks_read_the_same_folders(name: str, tmp_path: Path) -> None:
    whole, split = saved(name, tmp_path / "whole"), tmp_path / "split"
    assert main(["--model", str(whole), "-tp", "2", "--output_dir", str(split)]) == 0
    tokens = []
    for folder, stages in ((whole, 1), (split, 2)):
        driver = Driver(thread_ranks(folder, 2, stages, **ROWS[name].runner))  # type: ignore[arg-type]
        tokens.append((driver.generate(0, prompt_of(40), 12), driver.generate(1, prompt_of(9, 1), 12)))
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("name", ["qwen2", "mixtral", "deepseek-v3", "gpt2", "chatglm", "olmo2"])
def test_a_rank_has_what_it_reads_and_no_more(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that it reads of its folder are all that are there, and as many as it reads of a whole one."""
    save_row(tmp_path / "whole", ROWS[name])
    split = tmp_path / "split"
    assert main(["--model", str(tmp_path / "whole"), "-tp", "2", "--output_dir", str(split)]) == 0
    config = read_model_config(split)
    read: dict[tuple[str, str], int] = {}
    original = SafetensorsWeights._mapped

    def mapped(self: SafetensorsWeights, name: str, block: object) -> torch.Tensor:
        found = original(self, name, block)  # type: ignore[arg-type]
        read[name, repr(block)] = found.nbytes
        return found

    def by_name() -> dict[str, int]:
        total: dict[str, int] = {}
        for (tensor, _), nbytes in read.items():
            total[tensor] = total.get(tensor, 0) + nbytes
        return total

    monkeypatch.setattr(SafetensorsWeights, "_mapped", mapped)
    for rank in range(2):
        counted = []
        for folder in (tmp_path / "whole", split):
            read.clear()
            loader.load_model(
                folder,
                shard_model(config, rank, 2),
                load_format="auto",
                max_positions=64,
                device=torch.device("cpu"),
                dtype=torch.float32,
                group=thread_groups(2)[rank],
            )
            counted.append(by_name())
        assert counted[0] == counted[1]
        there = {tensor: value.nbytes for tensor, value in tensors_of(split / f"rank_{rank}").items()}
        assert there == counted[1]


@pytest.mark.parametrize("row", MTP_ROWS)
def test_layers_for_multi_token_prediction_are_split_too(row: str, tmp_path: Path) -> None:
    """And only where all of them are there."""
    whole, split = tmp_path / "whole", tmp_path / "split"
    save_with_mtp(whole, row)
    head = find_mtp(whole, read_model_config(whole))
    assert head is not None
    assert main(["--model", str(whole), "-tp", "2", "--output_dir", str(split)]) == 0
    assert main(["--model", str(split), "--reverse", "--output_dir", str(tmp_path / "joined")]) == 0
    before, after = tensors_of(whole), tensors_of(tmp_path / "joined")
    assert before.keys() == after.keys()
    assert all(same_bytes(value, after[name]) for name, value in before.items())
    ranks = [tensors_of(split / f"rank_{rank}") for rank in range(2)]
    divided = {name for name in head.tensors.expected() if ranks[0][name].numel() < before[name].numel()}
    assert all(2 * ranks[1][name].numel() == before[name].numel() for name in divided)
    assert all(same_bytes(ranks[1][name], before[name]) for name in head.tensors.expected().keys() - divided)
    assert any("self_attn.o_proj" in name for name in divided)
    runner = thread_ranks(split, 2, speculative=SpeculativeConfig(method="mtp", gamma=3), max_model_len=256)
    core = core_for(runner.config, runner, step_seconds=free_drafts())  # type: ignore[arg-type]
    recorder, reference = Recorder(core), MTPReference(whole, row)
    greedy = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    run(core, [GenerateRequest(request_id="r", prompt_token_ids=prompt_of(40), sampling=greedy)], stagger=1)
    assert len(recorder.drafts) > 5
    for known, drafted in recorder.drafts:
        assert drafted == reference.draft(known, len(drafted)), known
    del before[next(name for name in divided)]
    save_file(before, whole / "model.safetensors")
    assert main(["--model", str(whole), "-tp", "2", "--output_dir", str(tmp_path / "without")]) == 0
    left = divided & before.keys()
    assert all(same_bytes(tensors_of(tmp_path / "without" / "rank_0")[name], before[name]) for name in left)


def test_pickled_weights_are_split_too(tmp_path: Path) -> None:
    whole, split = saved("qwen2", tmp_path / "whole"), tmp_path / "split"
    before = tensors_of(whole)
    before["model.norm.weight"] = torch.stack([before["model.norm.weight"]] * 2, 1)[:, 0]  # not contiguous
    (whole / "model.safetensors").unlink()
    before = {name: value for name, value in before.items() if value.numel()}
    torch.save(before, whole / "pytorch_model.bin")
    assert main(["--model", str(whole), "-tp", "2", "--output_dir", str(split)]) == 0
    assert main(["--model", str(split), "--reverse", "--output_dir", str(tmp_path / "joined")]) == 0
    after = tensors_of(tmp_path / "joined")
    assert after.keys() == before.keys()
    assert all(same_bytes(value.contiguous(), after[name]) for name, value in before.items())


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl", "internvl-llama"])
def test_every_rank_has_the_whole_vision_tower(name: str, tmp_path: Path) -> None:
    whole, split = saved(name, tmp_path / "whole"), tmp_path / "split"
    assert main(["--model", str(whole), "-tp", "2", "--output_dir", str(split)]) == 0
    vision = read_model_config(whole).tensors.vision
    tower = {name: tensor for name, tensor in tensors_of(whole).items() if name.startswith(vision)}
    assert len(tower) > 20
    for rank in range(2):
        own = tensors_of(split / f"rank_{rank}")
        assert all(same_bytes(tensor, own[name]) for name, tensor in tower.items())
