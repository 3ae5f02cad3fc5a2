"""Which layers each stage of a pipeline has, and that the stages together have the model."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from engine_support.families import ROWS, in_one_tensor, save_row
from hypothesis import given
from hypothesis import strategies as st

from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.implementation import read_model_config
from blade_llm.models.memory import activation_bytes, weight_bytes
from blade_llm.models.sharding import pipeline_parallel_problem, rank_model
from blade_llm.models.sharding.stages import _divide, stage_model, stages_of
from blade_llm.parallel.layout import RankLayout
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.modules import ModulesSpec
from blade_llm.weights.checkpoint import open_checkpoint

QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}  # fmt: skip
NAMES = [name for name, row in ROWS.items() if row.through == "blade"]


def read(folder: Path, **fields: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({**QWEN2, **fields}))
    return load_model_config(folder)


def test_the_output_matrix_counts_as_layers(tmp_path: Path) -> None:
    """Of Qwen2.5-0.5B it is as large as nine layers."""
    assert [len(stage.layers) for stage in stages_of(read(tmp_path), 2)] == [17, 7]
    small = read(tmp_path, vocab_size=100)
    assert [len(stage.layers) for stage in stages_of(small, 2)] == [12, 12]
    assert [len(stage.layers) for stage in stages_of(small, 5)] == [5, 5, 5, 5, 4]
    assert [len(stage.layers) for stage in stages_of(small, 24)] == [1] * 24


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.data())
def test_no_other_division_has_a_faster_slowest_stage(costs: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(costs)))
    starts = _divide(costs, count)

    def slowest(starts: list[int]) -> int:
        return max(sum(costs[start:end]) for start, end in pairwise([0, *starts, len(costs)]))

    assert len(starts) == count - 1
    assert all(start < end for start, end in pairwise([0, *starts, len(costs)]))
    others = data.draw(st.permutations(range(1, len(costs))))
    assert slowest(starts) <= slowest(sorted(others[: count - 1]))


@pytest.mark.parametrize("name", NAMES)
def test_together_the_stages_have_the_model(name: str, tmp_path: Path) -> None:
    """Every tensor is that of one stage, but for a table that is input and output."""
    save_row(tmp_path, ROWS[name])
    whole = read_model_config(tmp_path)
    assert isinstance(whole.decoder, DecoderSpec)
    for count in range(2, min(3, whole.num_layers) + 1):
        stages = [stage_model(whole, stage) for stage in stages_of(whole, count)]
        assert sum((stage.decoder.layers for stage in stages), ()) == whole.decoder.layers  # type: ignore[union-attr]
        for names in (None, open_checkpoint(tmp_path).tensors.keys()):
            maps = [stage.tensors if names is None else stage.tensors.found_in(names) for stage in (whole, *stages)]
            read = Counter(name for each in maps[1:] for name in each.expected())
            twice = {maps[0].tensors["embedding"].name} if whole.decoder.tied and whole.decoder.head else set()
            assert read == {name: 1 + (name in twice) for name in maps[0].expected()}
        assert sum(stage.kv.num_layers for stage in stages) == whole.kv.num_layers
        ranks = [rank_model(whole, RankLayout(pipeline=count), rank) for rank in range(count)]
        assert sum(rank.kv_share for rank in ranks) == 1
        assert [weight_bytes(stage, "float32") > 0 for stage in stages] == [True] * count


def test_a_stage_of_a_fused_mixture_has_its_own_experts(tmp_path: Path) -> None:
    folder, fused = tmp_path / "model", tmp_path / "fused"
    save_row(folder, ROWS["mixtral"])
    in_one_tensor(folder, fused)
    whole = read_model_config(fused)
    names = open_checkpoint(fused).tensors.keys()
    stages = [stage_model(whole, stage).tensors.found_in(names) for stage in stages_of(whole, 2)]
    together = {name for each in stages for name in each.expected()}
    assert together == set(whole.tensors.found_in(names).expected())
    assert not set(stages[0].expected()) & set(stages[1].expected())


def test_ranks_of_a_stage_have_the_same_layers(tmp_path: Path) -> None:
    """Also where the first rank has more, which has all biases."""
    whole, layout = read(tmp_path), RankLayout(tensor=2, pipeline=3)
    ranks = [rank_model(whole, layout, rank) for rank in range(layout.size)]
    assert [rank.stage and rank.stage.index for rank in ranks] == [0, 0, 1, 1, 2, 2]
    assert [rank.shard and rank.shard.rank for rank in ranks] == [0, 1, 0, 1, 0, 1]
    assert all(one.stage == other.stage for one, other in zip(ranks[::2], ranks[1::2], strict=True))
    assert rank_model(whole, RankLayout(), 0) is whole
    assert sum(rank.kv_share for rank in ranks) == 1


@pytest.mark.parametrize(
    ("layout", "shares"),
    [
        (RankLayout(), [1]),
        (RankLayout(tensor=2, nodes=2), [1, 1]),
        (RankLayout(pipeline=2, nodes=2), [1, 1]),
        (RankLayout(tensor=2, pipeline=2, nodes=2), [Fraction(1, 2)] * 4),
        (RankLayout(tensor=2, pipeline=2), [Fraction(17, 48)] * 2 + [Fraction(7, 48)] * 2),
        # Stages of 8, 8, 7 layers and 1.
        (RankLayout(pipeline=4, nodes=2), [Fraction(1, 2)] * 2 + [Fraction(7, 8), Fraction(1, 8)]),
    ],
    ids=str,
)
def test_the_ranks_of_a_machine_share_its_bytes_by_their_layers(
    layout: RankLayout, shares: list[Fraction], tmp_path: Path
) -> None:
    whole = read(tmp_path)
    assert [rank_model(whole, layout, rank).kv_share for rank in range(layout.size)] == shares


def test_only_the_last_stage_needs_memory_for_logits(tmp_path: Path) -> None:
    whole = read(tmp_path)
    stages = [stage_model(whole, stage) for stage in stages_of(whole, 3)]
    needed = [activation_bytes(each, "float32", max_batch_tokens=16, max_num_seqs=16) for each in (*stages, whole)]
    assert needed[0] == needed[1] < needed[2] == needed[3]


def test_what_has_no_stages_is_refused_by_name(tmp_path: Path) -> None:
    whole = read(tmp_path)
    assert pipeline_parallel_problem(whole, 1) is None
    assert pipeline_parallel_problem(whole, 24) is None
    message = "--pipeline_parallel_size 25 is more than the model's 24 layers; give at most that"
    assert pipeline_parallel_problem(whole, 25) == message
    with pytest.raises(UnsupportedModelError, match="is more than the model's 24 layers"):
        stages_of(whole, 25)
    assert isinstance(whole.decoder, DecoderSpec)
    encoder = replace(whole, decoder=replace(whole.decoder, bidirectional=True))
    assert "an encoder cannot be divided into stages; give --pipeline_parallel_size 1" in str(
        pipeline_parallel_problem(encoder, 2)
    )
    modules = replace(whole, decoder=ModulesSpec.__new__(ModulesSpec))
    assert "transformers' own modules" in str(pipeline_parallel_problem(modules, 2))
