"""Each family computes what transformers computes, in every kind of step, at every position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_support import family_table
from engine_support.families import ROWS, Row, in_one_tensor, save_row
from engine_support.family_proof import SCENARIOS, Comparison, bf16_noise
from engine_support.tiny_models import engine_config
from safetensors.torch import load_file, save_file

from blade_llm.kernels import native
from blade_llm.kernels.linear import native as native_linear
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.families.registry import FAMILIES
from blade_llm.models.implementation import read_model_config
from blade_llm.runner import build_runner
from blade_llm.weights.checkpoint import check_tensors, open_checkpoint


@pytest.fixture(scope="module", params=list(ROWS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Row, Path, Any]:
    row, folder = ROWS[request.param], tmp_path_factory.mktemp(request.param)
    return row, folder, save_row(folder, row)


def test_fp32(model: tuple[Row, Path, Any]) -> None:
    row, folder, reference = model
    compare = Comparison(build_runner(engine_config(folder, **row.runner)), reference)
    for scenario in SCENARIOS.values():
        scenario(compare)


def test_bf16(model: tuple[Row, Path, Any]) -> None:
    """As near to fp32 as transformers itself, by the native call for all layers where the row says so."""
    row, folder, reference = model
    noise, fused = bf16_noise(row, folder, reference)
    assert noise < 1.3
    if native.library() is not None and native_linear.is_available():
        assert fused is row.fused


def test_the_check_knows_every_tensor(model: tuple[Row, Path, Any]) -> None:
    """The map names all the checkpoint has, and nothing else: a weight that is not read would be missed in no test of
    its name."""
    row, folder, _ = model
    config, checkpoint = read_model_config(folder, row.runner.get("model_impl", "auto")), open_checkpoint(folder)
    expected = config.tensors.found_in(checkpoint.tensors).expected()
    assert check_tensors(checkpoint, expected) == []
    others = {name for name in checkpoint.tensors if not name.startswith(config.tensors.vision)}
    assert others - set(expected) <= {"lm_head.weight"}


@pytest.mark.parametrize(("name", "prefix"), [("gpt2", "transformer."), ("opt", "model."), ("qwen2", "model.")])
def test_a_checkpoint_of_the_layers_alone(name: str, prefix: str, tmp_path: Path) -> None:
    """As hubs have GPT-2 and OPT: the names begin below the module that the output matrix is beside."""
    reference = save_row(tmp_path, ROWS[name])
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({key.removeprefix(prefix): tensor for key, tensor in tensors.items()}, tmp_path / "model.safetensors")
    compare = Comparison(build_runner(engine_config(tmp_path)), reference)
    SCENARIOS["prefill_and_decode"](compare)


MIXTURES = [name for name, row in ROWS.items() if "experts" in row.shows and row.through == "blade"]


@pytest.mark.parametrize("name", MIXTURES)
def test_a_checkpoint_with_all_experts_in_one_tensor(name: str, tmp_path: Path) -> None:
    reference = save_row(tmp_path / "many", ROWS[name])
    in_one_tensor(tmp_path / "many", tmp_path / "one")
    checkpoint = open_checkpoint(tmp_path / "one")
    assert any(tensor.endswith("mlp.experts.gate_up_proj") for tensor in checkpoint.tensors)
    expected = read_model_config(tmp_path / "one").tensors.found_in(checkpoint.tensors).expected()
    assert check_tensors(checkpoint, expected) == []
    assert set(checkpoint.tensors) == set(expected)
    SCENARIOS["prefill_and_decode"](Comparison(build_runner(engine_config(tmp_path / "one")), reference))


def test_experts_in_one_tensor_that_are_missing_or_of_another_form_are_named(tmp_path: Path) -> None:
    save_row(tmp_path / "many", ROWS["mixtral"])
    in_one_tensor(tmp_path / "many", tmp_path / "one")
    file, name = tmp_path / "one" / "model.safetensors", "model.layers.1.mlp.experts.{}"
    tensors = load_file(file)
    del tensors[name.format("down_proj")]
    tensors[name.format("gate_up_proj")] = tensors[name.format("gate_up_proj")].transpose(1, 2).contiguous()
    save_file(tensors, file)
    with pytest.raises(ModelFilesError) as caught:
        build_runner(engine_config(tmp_path / "one"))
    shape = list(tensors[name.format("gate_up_proj")].shape)
    assert f"1 of 30 tensors are missing: {name.format('down_proj')}" in str(caught.value)
    wrong = f"{name.format('gate_up_proj')} is {shape} in model.safetensors, config.json asks for "
    assert f"{wrong}{[shape[0], *shape[:0:-1]]}" in str(caught.value)


def test_each_family_has_a_row() -> None:
    assert {row.architecture for row in ROWS.values() if row.through == "blade"} == set(FAMILIES)


def test_the_page_has_each_row() -> None:
    text = family_table.PAGE.read_text(encoding="utf-8")
    missing = [name for name, row in ROWS.items() if family_table.start(row) not in text]
    assert not missing, f"run `make test-models`: docs/models.md lacks {missing}"
