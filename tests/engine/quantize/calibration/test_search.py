"""SmoothQuant+'s search of an exponent, which may find that none is best."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from engine_support.calibrated import save_with_tokenizer, write_texts
from engine_support.quantize_runs import BLOCKS, quantize, stored_linears, with_weights
from engine_support.stored_tensors import tensors_of
from engine_support.tiny_text import write_tokenizer
from torch import Tensor

from blade_llm.quantize.calibration.layerwise import Layerwise
from blade_llm.quantize.calibration.recording import CalibrationMethod
from blade_llm.quantize.calibration.samples import batches_of
from blade_llm.quantize.calibration.search import TRIED, find_smoothing
from blade_llm.quantize.calibration.texts import read_texts
from blade_llm.quantize.options import Algorithm, QuantizeOptions
from blade_llm.quantize.report import REPORT_NAME
from blade_llm.quantize.run import prepare

SIZES = {"hidden_size": 64, "intermediate_size": 96}
LOUD = 64.0


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts") / "texts.jsonl")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole")
    return save_with_tokenizer(folder, "llama", torch.float32, **SIZES)


def on_a_grid(model: Path, folder: Path) -> Path:
    """The model with weights that 4 bits with zero points hold exactly, in groups of 32."""
    generator = torch.Generator().manual_seed(3)

    def rounded(like: Tensor) -> Tensor:
        integers = torch.randint(0, 16, like.shape, generator=generator)
        integers[:, 0::32], integers[:, 1::32] = 0, 15
        return (integers - 8).float() / 64

    with_weights(model, folder, {name: rounded(weight) for name, weight in stored_linears(model).items()})
    write_tokenizer(folder)
    return folder


def with_outliers(model: Path, folder: Path) -> Path:
    """The model with a loud channel in all norms, and what follows divided by as much: it computes the same."""
    norms = {name.removesuffix(".weight"): tensor for name, tensor in tensors_of(model).items() if "layernorm" in name}
    changed = {name: norm.clone() for name, norm in norms.items()}
    for norm in changed.values():
        norm[5] *= LOUD
    for name, weight in stored_linears(model).items():
        if not name.endswith(("o_proj", "down_proj")):
            changed[name] = weight.clone()
            changed[name][:, 5] /= LOUD
    with_weights(model, folder, changed)
    write_tokenizer(folder)
    return folder


def test_a_model_that_rounding_leaves_as_it_is_is_not_smoothed(
    model: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result is minmax's, and the report says why."""
    folder = on_a_grid(model, tmp_path / "m")
    flags = (*BLOCKS, "--asymmetric")
    assert quantize(folder, tmp_path / "minmax", *flags) == 0
    plain = ("--quant_algo", "smoothquant+", "--calib_data_file", str(texts))
    assert quantize(folder, tmp_path / "o", *flags, *plain) == 0
    assert "not smoothed: no exponent loses less than plain rounding" in capsys.readouterr().err
    one, other = tensors_of(tmp_path / "minmax"), tensors_of(tmp_path / "o")
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    calibration = json.loads((tmp_path / "o" / REPORT_NAME).read_text())["calibration"]
    assert calibration["smoothing"] is None
    assert "nothing is smoothed: on the calibration texts no exponent loses less" in calibration["notes"][-1]


def test_outliers_are_smoothed(model: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = with_outliers(model, tmp_path / "m")
    flags = (*BLOCKS, "--quant_algo", "smoothquant+", "--calib_data_file", str(texts))
    assert quantize(folder, tmp_path / "o", *flags) == 0
    calibration = json.loads((tmp_path / "o" / REPORT_NAME).read_text())["calibration"]
    assert 0 <= calibration["smoothing"] <= 1
    assert f"smoothed with an exponent of {calibration['smoothing']:g}" in capsys.readouterr().err
    assert not any("nothing is smoothed" in note for note in calibration["notes"])


@pytest.mark.parametrize("row", ["llama", "falcon"])
def test_the_loss_is_never_above_that_of_rounding(row: str, texts: Path, tmp_path: Path) -> None:
    folder = save_with_tokenizer(tmp_path / "m", row)
    smoothed, rounded = layers_of(folder, texts, "smoothquant+"), layers_of(folder, texts, "minmax")
    found = find_smoothing(smoothed, lambda name: None)
    assert set(found.losses) == set(TRIED)
    batch = batches_of(rounded.samples, rounded.samples.calibrating)[0]
    original = rounded.model.embedded()[batch.rows].clone()
    states = original.clone()
    for index in range(rounded.num_layers):
        layer = rounded.model.layer(index, CalibrationMethod(dict(rounded.tensors.linears)))
        original = rounded.model.compute(layer, index, original, batch)
        result = rounded.quantizer.quantize(rounded.groups(index), {}, 0.5)
        rounded.compute_quantized(index, result, states, states, [batch])
    wrong = rounded.model.normalised(states).double() - rounded.model.normalised(original).double()
    assert found.losses[None] == pytest.approx(float(wrong.square().sum()), rel=1e-9)
    assert found.losses[found.alpha] <= found.losses[None]


def layers_of(folder: Path, texts: Path, algorithm: Algorithm) -> Layerwise:
    options = QuantizeOptions(algorithm=algorithm, bits=4, group_size=8)
    wanted = QuantizeOptions(algorithm="smoothquant+", bits=4, group_size=8)
    job = prepare(folder, wanted, model="m", max_shard_bytes=1 << 30, texts=read_texts(texts))
    assert job.samples is not None
    return Layerwise(job.config, job.reader, job.samples, options, job.plan.modules)
