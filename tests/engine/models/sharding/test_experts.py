"""Experts that ranks divide as wholes: each is on one rank, which reads nothing of the others, and all else stays as it
is without."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from engine_support.families import ROWS, save_mixture
from engine_support.heads import MTP_ROWS, save_with_mtp

from blade_llm.config import EngineConfig, SpeculativeConfig
from blade_llm.models.config import ModelConfig
from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.implementation import read_model_config
from blade_llm.models.memory import activation_bytes, weight_bytes
from blade_llm.models.parameters import Parameters
from blade_llm.models.sharding import expert_parallel_problem, rank_model, shard_model, tensor_parallel_problem
from blade_llm.parallel.layout import RankLayout
from blade_llm.runner.draft_config import draft_model_config
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.moe import MoESpec
from blade_llm.spec.shard import Shard
from blade_llm.weights.sources import SafetensorsWeights

MIXTURES = [name for name, row in ROWS.items() if row.through == "blade" and "experts" in row.shows]


def ranks_of(config: ModelConfig, size: int) -> list[ModelConfig]:
    return [shard_model(config, rank, size, expert_parallel=True) for rank in range(size)]


def mixtures(config: ModelConfig) -> dict[int, MoESpec]:
    assert isinstance(config.decoder, DecoderSpec)
    return {number: layer.mlp for number, layer in enumerate(config.decoder.layers) if isinstance(layer.mlp, MoESpec)}


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("name", [*MIXTURES, "mixtral-one", "qwen2-moe-one", "deepseek-v3-one"])
def test_each_expert_is_whole_on_one_rank_and_all_else_is_divided_as_ever(name: str, size: int, tmp_path: Path) -> None:
    folder = save_mixture(name, tmp_path)
    whole = read_model_config(folder)
    if problem := tensor_parallel_problem(whole, size, expert_parallel=True):
        assert "leaves a rank without any of the 6 experts" in problem
        return

    def reader(config: ModelConfig) -> Parameters:
        source = SafetensorsWeights(folder, config, torch.device("cpu"), torch.float32)
        return Parameters(source, config.tensors.found_in(source.names))

    ranks, of_whole = ranks_of(whole, size), reader(whole)
    readers, divided = [reader(rank) for rank in ranks], [reader(shard_model(whole, r, size)) for r in range(size)]
    for number, spec in mixtures(whole).items():
        parts = [mixtures(rank)[number].experts for rank in ranks]
        count = spec.routing.num_experts
        assert (parts[0].start, parts[-1].stop) == (0, count)
        assert all(one.stop == other.start for one, other in pairwise(parts))
        assert {len(part) for part in parts} <= {count // size, -(-count // size)}
        for part, own in zip(parts, readers, strict=True):
            here = {place for place in own.map.linears if place.startswith(f"layers.{number}.mlp.experts.")}
            assert here == {f"layers.{number}.mlp.experts.{e}.{half}" for e in part for half in ("up", "down")}
            for place in here:
                read = own.read(own.linear(place).weights)
                assert torch.equal(read, of_whole.read(of_whole.linear(place).weights)), place
    for own, other in zip(readers, divided, strict=True):
        rest = [place for place in other.map.linears if ".mlp.experts." not in place]
        assert rest == [place for place in own.map.linears if ".mlp.experts." not in place]
        assert all(own.linear(place) == other.linear(place) for place in rest)
        assert own.map.tensors == other.map.tensors


@pytest.mark.parametrize("name", MIXTURES)
def test_estimates_count_the_ranks_experts(name: str, tmp_path: Path) -> None:
    """Of 6 among 4 ranks some have two, some one."""
    whole = read_model_config(save_mixture(name, tmp_path))
    size = 4
    ranks = ranks_of(whole, size)
    for rank in ranks:
        experts = sum(3 * len(spec.experts) * spec.inner * whole.hidden_size for spec in mixtures(rank).values())
        linears = rank.tensors.linears
        assert experts == sum(each.size for place, each in linears.items() if ".mlp.experts." in place)
        assert weight_bytes(rank, "float32") >= 4 * experts
    most = max(sum(len(spec.experts) for spec in mixtures(rank).values()) for rank in ranks)
    least = min(sum(len(spec.experts) for spec in mixtures(rank).values()) for rank in ranks)
    weights = [weight_bytes(rank, "float32") for rank in ranks]
    assert (max(weights) - min(weights) > 0) or most == least
    steps = {"max_batch_tokens": 256, "max_num_seqs": 8}
    divided = shard_model(whole, 0, 2)  # of each expert a half
    assert activation_bytes(ranks[0], "float32", **steps) > activation_bytes(divided, "float32", **steps) / 2


def test_no_rank_complains_of_experts_that_are_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = save_mixture("mixtral", tmp_path)
    for rank in ranks_of(read_model_config(folder), 2):
        Parameters(SafetensorsWeights(folder, rank, torch.device("cpu"), torch.float32), rank.tensors)
    assert caplog.text == ""


def test_what_cannot_be_divided_says_why(tmp_path: Path) -> None:
    few, dense = (read_model_config(save_mixture(name, tmp_path / name)) for name in ("qwen2-moe-some", "qwen2"))
    assert tensor_parallel_problem(few, 8, expert_parallel=True) == (
        "--tensor_parallel_size 8 with --enable_expert_parallel leaves a rank without any of the 6 experts of the "
        "model; give 1, 2 or 4"
    )
    says = "--enable_expert_parallel: the model (Qwen2ForCausalLM) has no experts; leave the flag out"
    assert expert_parallel_problem(dense) == says
    assert expert_parallel_problem(few) is None
    with pytest.raises(UnsupportedModelError) as caught:
        rank_model(dense, RankLayout(2, expert_parallel=True), 1)
    assert str(caught.value) == says
    with pytest.raises(ValueError, match="tensor_parallel_size, which is 1; give 2 or more, or leave"):
        EngineConfig(model="x", served_names=(), enable_expert_parallel=True)


def test_experts_need_not_have_a_width_that_ranks_divide(tmp_path: Path) -> None:
    folder = save_mixture("mixtral", tmp_path)
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "intermediate_size": 45}))
    config = read_model_config(folder)
    assert "inner size 45 of the model's experts" in str(tensor_parallel_problem(config, 2))
    assert tensor_parallel_problem(config, 2, expert_parallel=True) is None
    assert ranks_of(config, 2)[1].decoder.widest > 45


@pytest.mark.parametrize("row", MTP_ROWS)
def test_a_head_that_drafts_divides_its_experts_alike(row: str, tmp_path: Path) -> None:
    save_with_mtp(tmp_path, row)
    config = EngineConfig(
        model=str(tmp_path),
        served_names=(),
        tensor_parallel_size=2,
        enable_expert_parallel=True,
        speculative=SpeculativeConfig(method="mtp"),
    )
    whole = read_model_config(tmp_path)
    if expert_parallel_problem(whole):
        return
    for rank in range(2):
        draft = draft_model_config(config, rank_model(whole, RankLayout.of(config), rank), "float32")
        assert draft is not None
        assert draft.model.shard == Shard(rank, 2, expert_parallel=True)
        for spec in mixtures(draft.model).values():
            assert spec.experts == Shard(rank, 2).share_of(spec.routing.num_experts)
