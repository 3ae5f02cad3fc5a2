"""Packed weights on disk: written once, found again, never believed when they are not whole or not of this model."""

from __future__ import annotations

import os
from pathlib import Path

import numpy
import pytest
import torch
from engine_support.packed_starts import BF16, CPU, assert_equal, files, load
from hub_support.tiny_model import make_model, tensors
from safetensors.numpy import save_file

from blade_llm.models.config import load_model_config
from blade_llm.models.sharding import shard_model
from blade_llm.models.tensors import expected_tensors
from blade_llm.runner.kv_quant import with_kv_quant
from blade_llm.weights import sources
from blade_llm.weights.packed_cache import file as packed_file
from blade_llm.weights.packed_cache import loading
from blade_llm.weights.packed_cache.sources import WritingSource
from blade_llm.weights.sources import SafetensorsWeights

pytestmark = pytest.mark.skipif(not loading.can_be_kept(CPU, BF16), reason="no native kernels on this CPU")


@pytest.mark.parametrize(
    "options", [{}, {"quant": "int8"}, {"quant": "int4", "deterministic": True}], ids=["bf16", "int8", "int4"]
)
def test_a_second_start_reads_the_same_numbers_from_the_packed_file(
    model: Path, cache: Path, counted: list[str], options: dict[str, object]
) -> None:
    expected = load(model, None, **options)
    assert_equal(load(model, cache, **options), expected)
    assert len(files(cache)) == 1
    del counted[:]
    assert_equal(load(model, cache, **options), expected)
    assert counted == [], "even the embedding and the norms are there, for they were converted to bf16"


def test_what_the_models_files_hold_as_it_is_computed_in_is_not_stored_again(
    tmp_path: Path, cache: Path, counted: list[str]
) -> None:
    from safetensors.torch import save_file

    model = make_model(tmp_path / "model")
    save_file({name: torch.tensor(value).bfloat16() for name, value in tensors().items()}, model / "model.safetensors")
    expected = load(model, None)
    load(model, cache)
    del counted[:]
    assert_equal(load(model, cache), expected)
    assert set(counted) == {name for name in tensors() if "norm" in name or "embed" in name}


def test_other_settings_and_other_content_have_files_of_their_own(tmp_path: Path, model: Path, cache: Path) -> None:
    load(model, cache)
    load(model, cache, quant="int8")
    assert len(files(cache)) == 2
    changed = {"model.layers.0.mlp.up_proj.weight": tensors()["model.layers.0.mlp.up_proj.weight"] * 2}
    other = make_model(tmp_path / "other", shards=2, replace=changed)
    assert_equal(load(other, cache), load(other, None))
    assert len(files(cache)) == 3


def test_any_kv_cache_has_the_same_file(model: Path, cache: Path, counted: list[str]) -> None:
    plain = load_model_config(model)
    load(model, cache, config=plain)
    del counted[:]
    load(model, cache, config=with_kv_quant(plain, "int8"))
    assert (len(files(cache)), counted) == (1, [])


def test_each_rank_has_a_file_of_its_own(model: Path, cache: Path, counted: list[str]) -> None:
    """Their specs are equal, and so are the names of their tensors."""
    ranks = [shard_model(load_model_config(model), rank, 2) for rank in range(2)]
    expected = [load(model, None, config=config) for config in ranks]
    assert not torch.equal(expected[0].embedding, expected[1].embedding)
    for config in ranks:
        load(model, cache, config=config)
    assert len(files(cache)) == 2
    del counted[:]
    for config, wanted in zip(ranks, expected, strict=True):
        assert_equal(load(model, cache, config=config), wanted)
    assert counted == []


def test_the_same_content_elsewhere_is_recognised(tmp_path: Path, model: Path, cache: Path) -> None:
    load(model, cache)
    before = files(cache)
    copy = make_model(tmp_path / "copy", shards=2)
    os.utime(copy / "model-00001-of-00002.safetensors", (1, 1))
    assert_equal(load(copy, cache), load(model, None))
    assert files(cache) == before


def test_content_that_changes_in_place_is_noticed(model: Path, cache: Path) -> None:
    load(model, cache)
    part = model / "model-00002-of-00002.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 0x80
    part.write_bytes(data)
    assert_equal(load(model, cache), load(model, None))
    assert len(files(cache)) == 2


@pytest.mark.parametrize("damage", ["empty", "truncated", "directory", "foreign", "everyone's", "points beyond"])
def test_a_file_that_is_not_whole_or_not_ours_is_written_anew(
    model: Path, cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    load(model, cache)
    (packed,) = files(cache)
    whole = packed.read_bytes()
    content = {
        "empty": b"",
        "truncated": whole[:-4096],
        "directory": whole[:-60] + b"x" + whole[-59:],
        "foreign": os.urandom(len(whole)),
        "everyone's": whole,
        "points beyond": whole[4096:],
    }[damage]
    packed.write_bytes(content)
    if damage == "everyone's":
        packed.chmod(0o666)
    expected = load(model, None)
    assert_equal(load(model, cache), expected)
    assert "they are written anew" in caplog.text
    assert packed.read_bytes() == whole
    assert_equal(load(model, cache), expected)


def test_a_file_without_a_tensor_that_the_model_needs_is_not_used(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    finish = packed_file.PackedWriter.finish

    def forget(self: packed_file.PackedWriter, directory: packed_file.Directory) -> None:
        finish(self, packed_file.Directory(directory.linears[1:], (), ()))

    monkeypatch.setattr(packed_file.PackedWriter, "finish", forget)
    load(model, cache)
    assert_equal(load(model, cache), load(model, None))
    assert "StalePackedFileError" in caplog.text
    assert files(cache) == [], "the next start writes it anew"


@pytest.fixture
def of_panels(tmp_path: Path) -> Path:
    """A model whose matrices have a multiple of 32 rows, as real ones have."""
    random = numpy.random.default_rng(3)
    hidden, inner, kv = 128, 160, 64
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32, hidden), "model.norm.weight": (hidden,)}
    for layer in range(2):
        for name, shape in {
            "self_attn.q_proj.weight": (hidden, hidden), "self_attn.q_proj.bias": (hidden,),
            "self_attn.k_proj.weight": (kv, hidden), "self_attn.k_proj.bias": (kv,),
            "self_attn.v_proj.weight": (kv, hidden), "self_attn.v_proj.bias": (kv,),
            "self_attn.o_proj.weight": (hidden, hidden), "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden), "mlp.down_proj.weight": (hidden, inner),
            "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
        }.items():  # fmt: skip
            shapes[f"model.layers.{layer}.{name}"] = shape
    weights = {name: random.standard_normal(shape, dtype=numpy.float32) for name, shape in shapes.items()}
    return make_model(tmp_path / "panels", replace=weights, hidden_size=hidden, intermediate_size=inner)


@pytest.mark.parametrize("options", [{}, {"quant": "int8"}, {"quant": "int4"}], ids=["bf16", "int8", "int4"])
def test_matrices_of_whole_panels_are_packed_without_a_copy(
    of_panels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    expected = load(of_panels, None, **options)
    stacked = SafetensorsWeights.stacked

    def small_only(self: SafetensorsWeights, names: list[str]) -> torch.Tensor:
        assert len(names) == 1 or names[0].endswith("bias")
        return stacked(self, names)

    monkeypatch.setattr(SafetensorsWeights, "stacked", small_only)
    assert_equal(load(of_panels, cache, **options), expected)
    assert len(files(cache)) == 1
    assert_equal(load(of_panels, cache, **options), expected)


def test_a_model_that_needs_a_stacked_weight_itself_is_loaded_without_a_file(
    of_panels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stacked = WritingSource.stacked
    kept: list[torch.Tensor] = []
    monkeypatch.setattr(WritingSource, "stacked", lambda self, names: kept.append(stacked(self, names)) or kept[-1])
    assert_equal(load(of_panels, cache), load(of_panels, None))
    assert "StalePackedFileError" in caplog.text
    assert files(cache) == []


def test_a_bin_checkpoint_is_written_once_and_not_what_is_packed_of_it_again(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, counted: list[str]
) -> None:
    monkeypatch.setattr(sources, "SMALL_BYTES", 0)
    for file in model.glob("model*"):
        file.unlink()
    torch.save({name: torch.tensor(value).bfloat16() for name, value in tensors().items()}, model / "pytorch_model.bin")
    expected = load(model, None)
    load(model, cache)
    (packed,) = files(cache)
    names = {stored.names[0] for stored in packed_file.PackedFile(packed).directory.tensors}
    assert names == {name for name in tensors() if "norm" in name or "embed" in name}
    del counted[:]
    assert_equal(load(model, cache), expected)
    assert counted == []


def test_weights_that_are_transposed_are_the_same_with_and_without_a_folder(tmp_path: Path, cache: Path) -> None:
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "n_ctx": 64, "n_inner": None}
    model = make_model(tmp_path / "model", architectures=["GPT2LMHeadModel"], activation_function="gelu_new", **shape)
    random = numpy.random.default_rng(5)
    save_file(
        {
            name: random.standard_normal(shape, dtype=numpy.float32)
            for name, shape in expected_tensors(load_model_config(model)).items()
        },
        model / "model.safetensors",
    )
    expected = load(model, None)
    assert_equal(load(model, cache), expected)
    assert_equal(load(model, cache), expected)
