"""A block of a tensor is read without the rest of it, and judged without it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from engine_support.resident_pages import resident
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.tensors import expected_tensors
from blade_llm.spec.slices import Slice, contiguous_runs
from blade_llm.weights import sources
from blade_llm.weights.mapped_pages import MappedPages
from blade_llm.weights.sources import DummyWeights, SafetensorsWeights

CPU = torch.device("cpu")
EMBEDDING, DOWN = "model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight"
BLOCKS = {
    "rows": Slice(rows=range(3000, 5000)),
    "columns": Slice(columns=range(128, 256)),
    "both": Slice(rows=range(17, 6001), columns=range(3, 509)),
    "none": Slice(rows=range(8192, 8192)),
}


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, ModelConfig]:
    """16 MiB of embedding, and one layer."""
    config = {
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 512, "intermediate_size": 2048, "vocab_size": 8192,
        "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "tie_word_embeddings": True, "torch_dtype": "float32",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = load_model_config(tmp_path)
    dummy = DummyWeights(found, CPU, torch.float32)
    save_file({name: dummy.tensor(name).clone() for name in expected_tensors(found)}, tmp_path / "model.safetensors")
    return tmp_path, found


def cut(tensor: torch.Tensor, block: Slice) -> torch.Tensor:
    rows, columns = block.rows or range(0 if block.rows is not None else len(tensor)), block.columns
    columns = range(tensor.shape[1]) if columns is None else columns
    return tensor[list(rows)][:, list(columns)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", list(BLOCKS.values()), ids=list(BLOCKS))
def test_a_block_is_that_of_the_whole(model: tuple[Path, ModelConfig], block: Slice, dtype: torch.dtype) -> None:
    folder, config = model
    source, dummy = SafetensorsWeights(folder, config, CPU, dtype), DummyWeights(config, CPU, torch.float32)
    expected = cut(load_file(folder / "model.safetensors")[EMBEDDING], block)
    found = source.tensor(EMBEDDING, block)
    assert found.is_contiguous()
    assert torch.equal(found, expected.to(dtype))
    of_dummy = dummy.tensor(EMBEDDING, block)
    assert torch.equal(of_dummy, expected)
    assert of_dummy.untyped_storage().nbytes() == of_dummy.nbytes, "the whole does not stay in memory for it"


def test_a_block_of_a_pickled_tensor(model: tuple[Path, ModelConfig]) -> None:
    folder, config = model
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(whole, folder / "pytorch_model.bin")
    source = SafetensorsWeights(folder, config, CPU, torch.float32)
    for block in BLOCKS.values():
        found = source.tensor(EMBEDDING, block)
        assert found.is_contiguous()
        assert torch.equal(found, cut(whole[EMBEDDING], block))


def test_pages_of_other_rows_are_not_touched(model: tuple[Path, ModelConfig]) -> None:
    """And those of the block are given back where the model has taken a copy."""
    folder, config = model
    source = SafetensorsWeights(folder, config, CPU, torch.float32)
    quarter = source.tensor(EMBEDDING, Slice(rows=range(2048, 4096)))
    expected = DummyWeights(config, CPU, torch.float32).tensor(EMBEDDING)
    assert torch.equal(quarter, expected[2048:4096])
    assert (4 << 20) <= resident(folder / "model.safetensors") < (9 << 20), "the system may map some pages around those"
    some = source.tensor(EMBEDDING, Slice(rows=range(1024), columns=range(64)))
    assert resident(folder / "model.safetensors") < (7 << 20)
    del source
    assert resident(folder / "model.safetensors") < (4 << 20)
    assert torch.equal(quarter[-1], expected[4095])
    assert torch.equal(some, expected[:1024, :64])


def test_a_large_block_of_rows_is_no_copy(model: tuple[Path, ModelConfig]) -> None:
    folder, config = model
    source = SafetensorsWeights(folder, config, CPU, torch.float32)
    one, other = (source.tensor(EMBEDDING, Slice(rows=range(2048, 4096))) for _ in range(2))
    assert one.data_ptr() == other.data_ptr()


@pytest.mark.parametrize(
    ("row", "column", "block"),
    [
        (100, 5, Slice(rows=range(100, 200))),
        (199, 2047, Slice(rows=range(100, 200))),
        (3, 1024, Slice(columns=range(1024, 1100))),
        (3, 1099, Slice(rows=range(3, 4), columns=range(1024, 1100))),
    ],
)
def test_nan_is_found_in_the_block_and_nowhere_else(
    model: tuple[Path, ModelConfig], row: int, column: int, block: Slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = model
    tensors = load_file(folder / "model.safetensors")
    tensors[DOWN][row, column] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    judged: list[int] = []
    is_finite = sources._is_finite
    monkeypatch.setattr(sources, "_is_finite", lambda tensor: judged.append(tensor.numel()) or is_finite(tensor))
    source = SafetensorsWeights(folder, config, CPU, torch.float32)
    with pytest.raises(ModelFilesError, match=f"tensor '{DOWN}' holds NaN or infinite numbers"):
        source.tensor(DOWN, block)
    for other in (Slice(rows=range(row)), Slice(rows=range(row + 1, 512)), Slice(columns=range(column))):
        source.tensor(DOWN, other)
    size = len(block.rows or range(512)) * len(block.columns or range(2048))
    assert judged == [size, row * 2048, (511 - row) * 2048, 512 * column]


def test_what_is_given_back_lies_within_the_block(
    model: tuple[Path, ModelConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[tuple[int, int]] = []
    monkeypatch.setattr(MappedPages, "note", lambda self, file, address, nbytes: noted.append((address, nbytes)))
    folder, config = model
    source = SafetensorsWeights(folder, config, CPU, torch.float32)
    source.tensor(DOWN)
    source.tensor(DOWN, Slice(rows=range(10, 20), columns=range(1024, 1536)))
    (start, _), (address, nbytes) = noted[:2]
    assert address == start + (10 * 2048 + 1024) * 4
    assert nbytes == (9 * 2048 + 512) * 4


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40).map(tuple))
def test_runs_hold_each_row_once_and_the_order_gives_them_back(rows: tuple[int, ...]) -> None:
    runs, order = contiguous_runs(rows)
    read = [row for run in runs for row in run]
    assert read == sorted(set(rows))
    assert all(run.stop < other.start for run, other in pairwise(runs))
    assert tuple(read if order is None else [read[place] for place in order]) == rows
    assert contiguous_runs(range(3, 9)) == ((range(3, 9),), None)
