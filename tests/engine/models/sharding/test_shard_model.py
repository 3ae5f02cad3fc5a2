"""Which numbers of ranks can divide a model, what is said of the others, and any heads among any number of ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from engine_support.shards import Numbered, assert_divided
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_llm.models.config import KVSpec, ModelConfig, load_model_config
from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.names import Names, tensor_map
from blade_llm.models.parameters import Parameters
from blade_llm.models.sharding import shard_model, tensor_parallel_problem
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.modules import ModulesSpec
from blade_llm.spec.norm import NormSpec
from blade_llm.spec.rope import RopeSpec
from blade_llm.spec.vocabulary import vocabulary_rows, vocabulary_width

QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}  # fmt: skip
MOE = {"architectures": ["Qwen2MoeForCausalLM"], "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64}


def read(folder: Path, **fields: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({**QWEN2, **fields}))
    return load_model_config(folder)


@pytest.mark.parametrize(
    ("fields", "size", "message"),
    [
        ({}, 3, "--tensor_parallel_size 3 does not divide the model's 14 attention heads; give 1 or 2"),
        (
            {"num_key_value_heads": 14, "intermediate_size": 14 * 64},
            3,
            "--tensor_parallel_size 3 does not divide the model's 14 attention heads; give 1, 2, 7 or 14",
        ),
        (
            {"num_attention_heads": 12, "num_key_value_heads": 6, "hidden_size": 768},
            4,
            "--tensor_parallel_size 4 neither divides the model's 6 key-value heads nor is a multiple of them; give 1 "
            "or 2",
        ),
        (
            {"num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 4866},
            4,
            "--tensor_parallel_size 4 does not divide the inner size 4866 of the model's MLP; give 1 or 2",
        ),
        (
            {**MOE, "moe_intermediate_size": 1404},
            8,
            "--tensor_parallel_size 8 does not divide the inner size 1404 of the model's experts; give 1, 2 or 4",
        ),
        (
            {**MOE, "shared_expert_intermediate_size": 5634},
            4,
            "--tensor_parallel_size 4 does not divide the inner size 5634 of the model's shared expert; give 1 or 2",
        ),
        (
            {"vocab_size": 5, "num_attention_heads": 8, "hidden_size": 512},
            4,
            "--tensor_parallel_size 4 leaves a rank without any of the 5 tokens of the model's vocabulary; give 1 or 2",
        ),
    ],
)
def test_what_cannot_be_divided_says_what_can(tmp_path: Path, fields: dict[str, Any], size: int, message: str) -> None:
    config = read(tmp_path, **fields)
    assert tensor_parallel_problem(config, size) == message
    with pytest.raises(UnsupportedModelError) as caught:
        shard_model(config, 0, size)
    assert str(caught.value) == message
    assert tensor_parallel_problem(config, 1) is None
    assert shard_model(config, 0, 1) is config


def test_models_that_no_number_of_ranks_divides(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert isinstance(config.decoder, DecoderSpec)
    modules = ModulesSpec({}, 8, 8, 8, False, 8, (), 8, ())
    for decoder, what in (
        (replace(config.decoder, bidirectional=True), "an encoder"),
        (modules, "a model that transformers' own modules compute"),
    ):
        problem = tensor_parallel_problem(replace(config, decoder=decoder), 2)
        assert problem is not None
        assert problem.startswith(f"--tensor_parallel_size 2: {what}")
        assert problem.endswith("cannot be divided among ranks; give --tensor_parallel_size 1")


def test_a_rank_that_there_is_not_and_a_part_of_a_part(tmp_path: Path) -> None:
    config = read(tmp_path)
    with pytest.raises(ValueError, match="rank 2 of 2 ranks"):
        shard_model(config, 2, 2)
    with pytest.raises(ValueError, match="rank 1's part of a model already"):
        shard_model(shard_model(config, 1, 2), 0, 2)


def test_what_names_packed_weights_differs_between_ranks(tmp_path: Path) -> None:
    """Their specs are equal."""
    config = read(tmp_path)
    ranks = [config, *(shard_model(config, rank, 2) for rank in range(2))]
    assert ranks[1].decoder == ranks[2].decoder
    assert len({repr(each) for each in ranks}) == 3
    keys = [{part.key for part in each.tensors.parts() if not part.plain} for each in ranks]
    assert not keys[1] & keys[2]


@given(st.integers(1, 200_000), st.integers(1, 64))
def test_each_token_has_one_rank(vocab_size: int, size: int) -> None:
    rows = [vocabulary_rows(vocab_size, rank, size) for rank in range(size)]
    assert rows[0].start == 0
    assert rows[-1].stop == vocab_size
    assert all(one.stop == other.start for one, other in pairwise(rows))
    assert max(map(len, rows)) == vocabulary_width(vocab_size, size) < vocab_size / size + 1


NAMES = {
    "three": Names(),
    "stacked": Names(qkv=("qkv",), up=("gate_up",)),
    "grouped": Names(qkv=("qkv",), qkv_layout="grouped"),
    "transposed": Names(qkv=("qkv",), up=("gate_up",), transposed=True),
}


@settings(deadline=None, max_examples=80)
@given(
    st.integers(1, 8), st.integers(1, 6), st.integers(1, 12), st.sampled_from(list(NAMES)), st.integers(1, 12),
    st.booleans(), st.booleans(), st.sampled_from(["halves", "neighbours"]),
)  # fmt: skip
def test_any_heads_among_any_number_of_ranks(
    kv_heads: int, share: int, size: int, names: str, each: int, gated: bool, bias: bool, pairing: Any
) -> None:
    heads = kv_heads * share
    attention = AttentionSpec(
        heads, kv_heads, 4, 0.5, RopeSpec(1e4, rotary_dim=4, pairing=pairing), qkv_bias=bias, output_bias=bias
    )
    norm = NormSpec(1e-6)
    layer = LayerSpec(attention, MLPSpec(each * size, gated=gated, bias=bias), norm, norm)
    spec = DecoderSpec(size * 3 + 1, 8, (layer,), norm, 32, tied=False, head_bias=bias)
    chosen = NAMES[names]
    if not gated:
        chosen = replace(chosen, up=("up",))
    tensors = tensor_map(spec, chosen)
    config = ModelConfig("Any", spec, tensors, KVSpec(1, kv_heads, 4), "float32", (), None)
    fits = heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)
    fits = fits and len(vocabulary_rows(spec.vocab_size, size - 1, size)) > 0
    problem = tensor_parallel_problem(config, size)
    assert (problem is None) == fits
    if not fits:
        return
    ranks = [shard_model(config, rank, size) for rank in range(size)]
    source = Numbered(tensors)
    assert_divided(spec, Parameters(source, tensors), [Parameters(source, rank.tensors) for rank in ranks])
