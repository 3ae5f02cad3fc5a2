"""What the ranks of a tensor-parallel group read of a checkpoint is the model, no more and no less, in every family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_support.families import ROWS, Row, in_one_tensor, save_row
from engine_support.shards import Numbered, assert_divided
from torch import Tensor

from blade_llm.models.config import ModelConfig
from blade_llm.models.implementation import read_model_config
from blade_llm.models.memory import activation_bytes, weight_bytes
from blade_llm.models.parameters import Parameters
from blade_llm.models.sharding import shard_model, tensor_parallel_problem
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.vocabulary import vocabulary_rows
from blade_llm.weights.sources import DummyWeights, SafetensorsWeights

CPU = torch.device("cpu")
SIZES = {"bloom": (2, 3, 6), "gpt2": (2, 4), "gpt-j": (2, 4), "stablelm": (2, 4), "stablelm-parallel": (2, 4)}
NAMES = [name for name, row in ROWS.items() if row.through == "blade"]
MIXTURES = [name for name in NAMES if "experts" in ROWS[name].shows]


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Row, Path]:
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    save_row(folder, ROWS[name])
    return name, ROWS[name], folder


def configs(folder: Path, row: Row, size: int) -> tuple[ModelConfig, list[ModelConfig]]:
    whole = read_model_config(folder, row.runner.get("model_impl", "auto"))
    assert tensor_parallel_problem(whole, size) is None
    return whole, [shard_model(whole, rank, size) for rank in range(size)]


def parameters(folder: Path, config: ModelConfig) -> Parameters:
    source = SafetensorsWeights(folder, config, CPU, torch.float32)
    return Parameters(source, config.tensors.found_in(source.names))


def test_together_the_ranks_read_the_model(model: tuple[str, Row, Path]) -> None:
    name, row, folder = model
    for size in SIZES.get(name, (2, 4, 8)):
        whole, ranks = configs(folder, row, size)
        assert isinstance(whole.decoder, DecoderSpec)
        assert_divided(whole.decoder, parameters(folder, whole), [parameters(folder, rank) for rank in ranks])


def test_dummy_weights_are_those_of_the_whole_model(model: tuple[str, Row, Path]) -> None:
    name, row, folder = model
    whole, ranks = configs(folder, row, SIZES.get(name, (2,))[0])
    sources = [Parameters(DummyWeights(each, CPU, torch.float32), each.tensors) for each in (whole, *ranks)]
    assert isinstance(whole.decoder, DecoderSpec)
    assert_divided(whole.decoder, sources[0], sources[1:])


def test_each_element_is_read_by_one_rank_or_by_all(model: tuple[str, Row, Path]) -> None:
    """Or, of a key head that some ranks share, by those."""
    name, row, folder = model
    size = SIZES.get(name, (8,))[-1]
    whole, ranks = configs(folder, row, size)
    assert isinstance(whole.decoder, DecoderSpec)
    source = Numbered(whole.tensors)

    def numbers(config: ModelConfig, place: str) -> dict[str, Tensor]:
        linear, tensor = config.tensors.linears.get(place), config.tensors.tensors.get(place)
        found = [*(linear.weights if linear else ()), *((tensor,) if tensor else ())]
        plain = [replace(part, unit_rows=False) for part in found]
        reader = Parameters(source, config.tensors)
        read: dict[str, list[Tensor]] = {}
        for part in plain:
            read.setdefault(part.name, []).append(reader.read([part]).flatten())
        return {name: torch.cat(parts) for name, parts in read.items()}

    for place in (*whole.tensors.linears, *whole.tensors.tensors):
        wanted, by_rank = numbers(whole, place), [numbers(rank, place) for rank in ranks]
        assert all(own.keys() <= wanted.keys() for own in by_rank), place
        times: set[int] = set()
        for name, of_whole in wanted.items():
            of_ranks = torch.cat([own[name] for own in by_rank if name in own])
            elements, counts = of_ranks.unique(return_counts=True)
            assert torch.equal(elements, of_whole.unique()), place
            times |= set(counts.tolist())
        assert times == _times(place, whole.decoder, size), place


def _times(place: str, whole: DecoderSpec, size: int) -> set[int]:
    """How many ranks read an element of the tensor at ``place``."""
    attention = whole.layers[0].attention
    if place.endswith("attention.qkv"):
        return {1, max(1, size // attention.num_kv_heads)}
    if place.endswith("attention.down"):
        return {size} if isinstance(attention, LatentAttentionSpec) and attention.query_rank else {1, size}
    if attention.head_norm_whole and place.endswith("k_norm.weight"):
        return {max(1, size // attention.num_kv_heads)}
    if attention.head_norm_whole and place.endswith("q_norm.weight"):
        return {1}
    divided = place in ("embedding", "head") or place.endswith((".query_up", ".kv_up", ".output", ".up", ".down"))
    return {1} if divided else {size}


def test_a_rank_has_its_heads_and_a_part_of_each_inner_dimension(model: tuple[str, Row, Path]) -> None:
    name, row, folder = model
    size = SIZES.get(name, (4,))[-1]
    whole, ranks = configs(folder, row, size)
    slopes: tuple[float, ...] = ()
    assert isinstance(whole.decoder, DecoderSpec)
    for number, rank in enumerate(ranks):
        assert isinstance(rank.decoder, DecoderSpec)
        assert (rank.vocab_size, rank.hidden_size) == (whole.vocab_size, whole.hidden_size)
        assert rank.num_heads * size == whole.num_heads
        assert rank.kv.num_heads == max(1, whole.kv.num_heads // size)
        assert rank.shard is not None
        assert (rank.shard.rank, rank.shard.size) == (number, size)
        for own, layer in zip(rank.decoder.layers, whole.decoder.layers, strict=True):
            assert own.mlp.inner * size == layer.mlp.inner
            assert own.attention.head_dim == layer.attention.head_dim
        slopes += rank.decoder.layers[0].attention.alibi_slopes
        assert rank.tensors.expected().items() <= whole.tensors.expected().items()
    assert slopes == whole.decoder.layers[0].attention.alibi_slopes
    assert ranks[0].tensors.expected() == whole.tensors.expected()


def test_estimates_are_of_the_rank(model: tuple[str, Row, Path]) -> None:
    name, row, folder = model
    size = SIZES.get(name, (4,))[-1]
    whole, ranks = configs(folder, row, size)
    for number, rank in enumerate(ranks):
        elements = sum(part.size for part in rank.tensors.parts())
        if whole.decoder.head and whole.decoder.tied:
            elements += len(vocabulary_rows(whole.vocab_size, number, size)) * whole.hidden_size
        assert weight_bytes(rank, "float32") == 4 * elements
        source = parameters(folder, rank)
        assert source.source.sizes == [part.size for part in source.map.parts()]  # type: ignore[attr-defined]
    steps = {"max_batch_tokens": 256, "max_num_seqs": 8}
    assert activation_bytes(ranks[0], "float32", **steps) < activation_bytes(whole, "float32", **steps)
    assert sum(weight_bytes(rank, "float32") for rank in ranks) >= weight_bytes(whole, "float32")


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_in_one_tensor(name: str, tmp_path: Path) -> None:
    save_row(tmp_path / "many", ROWS[name])
    in_one_tensor(tmp_path / "many", tmp_path / "one")
    for size in (2, 8):
        whole, ranks = configs(tmp_path / "one", ROWS[name], size)
        assert isinstance(whole.decoder, DecoderSpec)
        sources = [parameters(tmp_path / "one", each) for each in (whole, *ranks)]
        assert any(part.index is not None for part in sources[1].map.parts())
        assert_divided(whole.decoder, sources[0], sources[1:])


def test_only_the_first_rank_names_tensors_that_nothing_takes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others leave out biases, which would look so."""
    save_row(tmp_path, ROWS["llama-biases"])
    _, ranks = configs(tmp_path, ROWS["llama-biases"], 2)
    for rank in ranks:
        parameters(tmp_path, rank)
    assert caplog.text == ""
