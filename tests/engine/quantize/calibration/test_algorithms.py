"""Checkpoints that calibrated algorithms made: what they hold, and how far their outputs are from the original's."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.calibrated import save_with_tokenizer, write_texts
from engine_support.quantize_runs import BLOCKS, content, quantize, stored_linears, with_weights
from engine_support.runner_driver import Driver, prompt_of
from engine_support.stored_tensors import tensors_of
from engine_support.tiny_models import engine_config, load_reference, reference_greedy, reference_logits
from safetensors.torch import save_file
from torch import Tensor

from blade_llm.cli.split import main as split_main
from blade_llm.models.implementation import read_model_config
from blade_llm.quantization.hessian import Hessian
from blade_llm.quantization.report import layer_error
from blade_llm.quantize.calibration.layerwise import Layerwise
from blade_llm.quantize.calibration.recording import CalibrationMethod, Recorder
from blade_llm.quantize.calibration.samples import batches_of
from blade_llm.quantize.calibration.smoothing import Scaled
from blade_llm.quantize.calibration.texts import read_texts
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.report import REPORT_NAME
from blade_llm.quantize.run import prepare
from blade_llm.runner import build_runner
from blade_llm.weights.checkpoint import check_weights, open_checkpoint

SIZES = {"hidden_size": 64, "intermediate_size": 96}
W8A8 = ("--quant_mode", "act_and_weight_quant")
RUNS: dict[str, tuple[str, ...]] = {
    "gptq": (*BLOCKS, "--quant_algo", "gptq"),
    "gptq, zero points": (*BLOCKS, "--quant_algo", "gptq", "--asymmetric", "--act_order", "false"),
    "awq": (*BLOCKS, "--quant_algo", "awq", "--asymmetric"),
    "smoothquant+": (*BLOCKS, "--quant_algo", "smoothquant+"),
    "smoothquant": (*W8A8, "--quant_algo", "smoothquant"),
    "smoothquant, fp8": (*W8A8, "--quant_algo", "smoothquant", "--quant_dtype", "fp8"),
    "smoothquant_gptq": (*W8A8, "--quant_algo", "smoothquant_gptq"),
    "gptq, activations": (*W8A8, "--quant_algo", "gptq"),
}
FAMILIES = ("llama", "qwen2-moe", "deepseek-v3", "falcon", "gemma2", "olmo2", "phi3", "opt")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts") / "texts.jsonl")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole")
    return save_with_tokenizer(folder, "llama", **SIZES)


def report_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / REPORT_NAME).read_text())
    return found


def mean_output_error(report: dict[str, Any]) -> float:
    errors = [tensor["output_error"] for tensor in report["tensors"].values()]
    return sum(errors) / len(errors)


@pytest.mark.parametrize("name", RUNS)
def test_what_is_made(name: str, model: Path, texts: Path, tmp_path: Path) -> None:
    """The server's loader takes it, greedy tokens are mostly the original's, and the report says what was done."""
    flags = RUNS[name]
    assert quantize(model, tmp_path / "o", "--calib_data_file", str(texts), *flags) == 0
    assert not check_weights(open_checkpoint(tmp_path / "o"), read_model_config(tmp_path / "o"))
    assert {file.name for file in (tmp_path / "o").iterdir()} == {
        *(file.name for file in model.iterdir()), "README.md", REPORT_NAME
    }  # fmt: skip
    report = report_of(tmp_path / "o")
    calibration = report["calibration"]
    assert (calibration["samples"], calibration["held_out"]) == (18, 2)
    assert calibration["tokens"] > 18 * 12
    before, after = calibration["perplexity_before"], calibration["perplexity_after"]
    assert math.isclose(before, after, rel_tol=0.3)
    assert before != after
    needs = "gptq" in name or name == "awq"
    assert all((tensor["output_error"] is not None) == needs for tensor in report["tensors"].values())
    config = json.loads((tmp_path / "o" / "config.json").read_text())["quantization_config"]
    activations = config["config_groups"]["group_0"]["input_activations"]
    if W8A8[1] in flags:
        kind = "float" if "fp8" in flags else "int"
        assert config["format"] == ("float-quantized" if "fp8" in flags else "int-quantized")
        assert {name: activations[name] for name in ("num_bits", "type", "dynamic", "strategy", "symmetric")} == {
            "num_bits": 8, "type": kind, "dynamic": True, "strategy": "token", "symmetric": True
        }  # fmt: skip
    else:
        assert activations is None
    after_all = {**stored_others(tmp_path / "o"), **stored_linears(tmp_path / "o")}
    plain = with_tensors(model, tmp_path / "plain", after_all)
    prompt = prompt_of(40)
    driver = Driver(build_runner(engine_config(tmp_path / "o")))
    if W8A8[1] not in flags:
        assert driver.generate(0, prompt, 16) == reference_greedy(load_reference(plain), prompt, 16)
    logits, theirs = (reference_logits(load_reference(folder), prompt) for folder in (plain, model))
    assert float((logits - theirs).norm() / theirs.norm()) < (0.2 if W8A8[1] in flags else 0.6)


def stored_others(folder: Path) -> dict[str, Tensor]:
    """All that is no linear layer inside of the blocks, by name without ``.weight``."""
    return {
        name.removesuffix(".weight"): tensor
        for name, tensor in tensors_of(folder).items()
        if name.endswith(".weight") and tensor.is_floating_point() and tensor.itemsize > 1
    }


def with_tensors(folder: Path, target: Path, tensors: dict[str, Tensor]) -> Path:
    return with_weights(folder, target, {name: tensor.float().contiguous() for name, tensor in tensors.items()})


@pytest.mark.parametrize("row", FAMILIES)
def test_outputs_are_nearer_than_those_of_rounding(row: str, texts: Path, tmp_path: Path) -> None:
    """Of the first layer, whose inputs are the same for all: gptq and awq by the Hessian of the original's inputs."""
    folder = save_with_tokenizer(tmp_path / "m", row)
    flags = ("--bit", "4", "--block_wise_quant", "--block_size", "8")
    calibration = ("--calib_data_file", str(texts))
    assert quantize(folder, tmp_path / "minmax", *flags) == 0
    whole, errors = stored_linears(folder), {}
    hessians = hessians_of(folder, texts)
    rounded = stored_linears(tmp_path / "minmax")
    assert quantize(folder, tmp_path / "gptq", *flags, *calibration, "--quant_algo", "gptq") == 0
    assert quantize(folder, tmp_path / "awq", *flags, *calibration, "--quant_algo", "awq") == 0
    found = stored_linears(tmp_path / "gptq")
    reports = {name: report_of(tmp_path / name)["tensors"] for name in ("gptq", "awq")}
    assert hessians
    for module, hessian in hessians.items():
        plain = layer_error(whole[module], rounded[module], hessian).output
        output = layer_error(whole[module], found[module], hessian).output
        assert plain is not None
        assert output is not None
        assert output < plain, module
        said = reports["gptq"][f"{module}.weight"]["output_error"]
        assert math.isclose(said, math.sqrt(output), rel_tol=1e-3), module
        errors[module] = (math.sqrt(plain), reports["awq"][f"{module}.weight"]["output_error"])
    assert sum(awq for _, awq in errors.values()) < sum(plain for plain, _ in errors.values())


@pytest.mark.parametrize("row", ["llama", "qwen2-moe", "opt"])
def test_errors_are_those_of_the_original_weights(
    row: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first layer by awq, without the scales that its weights have on both sides."""
    folder = save_with_tokenizer(tmp_path / "m", row, torch.float32)
    seen: list[Scaled] = []

    def noted(*arguments: Any) -> Scaled:
        seen.append(Scaled(*arguments))
        return seen[-1]

    monkeypatch.setattr("blade_llm.quantize.calibration.layer.Scaled", noted)
    flags = ("--bit", "4", "--block_wise_quant", "--block_size", "8", "--quant_algo", "awq")
    assert quantize(folder, tmp_path / "o", *flags, "--calib_data_file", str(texts)) == 0
    scaled, said = seen[0], report_of(tmp_path / "o")["tensors"]
    whole, rounded = stored_linears(folder), stored_linears(tmp_path / "o")
    place_of = {part.module: place for place, linear in scaled.tensors.linears.items() for part in linear.parts}
    assert scaled.outputs
    for module, hessian in hessians_of(folder, texts).items():
        found = rounded[module]
        if (factors := scaled.inputs.get(place_of[module])) is not None:
            found = found / factors
        if (divided := scaled.outputs.get(module)) is not None:
            found = found * divided[:, None]
        error = layer_error(whole[module], found, hessian)
        assert error.output is not None
        assert math.isclose(said[f"{module}.weight"]["output_error"], math.sqrt(error.output), rel_tol=1e-3), module
        plain = float((whole[module] - found).norm() / whole[module].norm())
        assert math.isclose(said[f"{module}.weight"]["error"], plain, rel_tol=1e-3), module


def test_the_report_and_the_card_say_what_scales_went_into(model: Path, texts: Path, tmp_path: Path) -> None:
    flags = (*BLOCKS, "--calib_data_file", str(texts))
    assert quantize(model, tmp_path / "gptq", *flags, "--quant_algo", "gptq") == 0
    assert quantize(model, tmp_path / "awq", *flags, "--quant_algo", "awq") == 0
    before = tensors_of(model)
    for name in ("gptq", "awq"):
        after, report = tensors_of(tmp_path / name), report_of(tmp_path / name)
        others = before.keys() & after.keys()
        other = {each for each in others if not torch.equal(before[each], after[each])}
        assert other <= set(report["changed"])
        assert set(report["unchanged"]) == others - set(report["changed"])
        card = (tmp_path / name / "README.md").read_text()
        same = "Output matrix, embeddings, norms and routers are as in the original."
        assert (same in card) == (name == "gptq")
        assert ("scales went into" in card) == (name == "awq")
    assert {each for each in report["changed"] if "input_layernorm" in each}


def hessians_of(folder: Path, texts: Path) -> dict[str, Hessian]:
    """Of the first layer's linear layers, by module, as the command calibrates."""
    options = QuantizeOptions(algorithm="gptq")
    job = prepare(folder, options, model="m", max_shard_bytes=1 << 30, texts=read_texts(texts))
    assert job.samples is not None
    found = Layerwise(job.config, job.reader, job.samples, options, job.plan.modules)
    places = [place for group in found.groups(0) for place in group.places]
    recorder = Recorder(places, hessians=True)
    layer = found.model.layer(0, CalibrationMethod(dict(found.tensors.linears), recorder))
    states = found.model.embedded()
    for batch in batches_of(job.samples, job.samples.calibrating):
        found.model.compute(layer, 0, states[batch.rows], batch)
    inputs = {place: recorder.inputs(place) for place in places}
    return {
        part.module: seen.hessian
        for place, seen in inputs.items()
        for part in found.tensors.linears[place].parts
        if seen is not None and seen.hessian is not None
    }


def test_an_expert_without_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Is rounded to nearest, as minmax does it, and the report says so; so it says why nothing is scaled."""
    folder = save_with_tokenizer(tmp_path / "m", "qwen2-moe")
    flags = ("--bit", "4", "--block_wise_quant", "--block_size", "16")
    assert quantize(folder, tmp_path / "minmax", *flags) == 0
    assert quantize(folder, tmp_path / "gptq", *flags, "--quant_algo", "gptq", "--calib_data", "a") == 0
    assert "no token of the calibration reached it: rounded to nearest" in capsys.readouterr().err
    unseen = [
        name.removesuffix(".weight")
        for name, tensor in report_of(tmp_path / "gptq")["tensors"].items()
        if "no token of the calibration reached it: rounded to nearest" in tensor["notes"]
    ]
    one, other = stored_linears(tmp_path / "minmax"), stored_linears(tmp_path / "gptq")
    assert unseen
    assert all(".experts." in module for module in unseen)
    assert all(torch.equal(one[module], other[module]) for module in unseen)
    assert not all(torch.equal(one[module], other[module]) for module in one)


def test_a_singular_hessian_is_damped_and_said(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = (*BLOCKS, "--quant_algo", "gptq", "--damping", "0", "--calib_data", "one")
    assert quantize(model, tmp_path / "o", *flags) == 0
    said = capsys.readouterr().err
    assert "one calibration text is little: give 100 to 1,000" in said
    assert "the Hessian is singular with a damping of 0: raised to 0.01" in said
    notes = [note for tensor in report_of(tmp_path / "o")["tensors"].values() for note in tensor["notes"]]
    assert any("the Hessian is singular with a damping of 0: raised to 0.01" in note for note in notes)


def test_w8a8_without_calibration(model: Path, tmp_path: Path) -> None:
    assert quantize(model, tmp_path / "o", *W8A8) == 0
    assert quantize(model, tmp_path / "plain") == 0
    one, other = stored_linears(tmp_path / "o"), stored_linears(tmp_path / "plain")
    assert all(torch.equal(one[module], other[module]) for module in one)
    stored = tensors_of(tmp_path / "o")
    assert stored["model.layers.0.mlp.down_proj.weight"].dtype == torch.int8
    config = json.loads((tmp_path / "o" / "config.json").read_text())["quantization_config"]
    assert config["format"] == "int-quantized"
    assert config["config_groups"]["group_0"]["input_activations"]["dynamic"] is True


def test_hidden_states_in_files_change_nothing(model: Path, texts: Path, tmp_path: Path) -> None:
    flags = (*BLOCKS, "--quant_algo", "gptq", "--calib_data_file", str(texts))
    assert quantize(model, tmp_path / "memory", *flags) == 0
    assert quantize(model, tmp_path / "files", *flags, "--cpu_offload") == 0
    assert content(tmp_path / "memory") == content(tmp_path / "files")


def test_a_split_folder_is_calibrated_as_the_whole(model: Path, texts: Path, tmp_path: Path) -> None:
    flags = (*BLOCKS, "--quant_algo", "awq", "--calib_data_file", str(texts))
    assert split_main(["--model", str(model), "-tp", "2", "--output_dir", str(tmp_path / "split")]) == 0
    assert quantize(model, tmp_path / "one", *flags) == 0
    assert quantize(tmp_path / "split", tmp_path / "other", *flags, "--tensor_parallel_size", "2") == 0
    one, other = tensors_of(tmp_path / "one"), tensors_of(tmp_path / "other")
    assert one.keys() == other.keys()
    assert all(torch.equal(other[name], tensor) for name, tensor in one.items())


def test_weights_that_are_no_numbers_are_named(
    model: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(model, tmp_path / "m")
    tensors = tensors_of(model)
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name][3, 5] = float("nan")
    save_file(tensors, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    flags = (*BLOCKS, "--quant_algo", "awq", "--calib_data_file", str(texts))
    assert quantize(tmp_path / "m", tmp_path / "o", *flags) == 1
    said = capsys.readouterr().err
    assert f"{name} cannot be quantised: 1 of 6144 weights are NaN or infinite: the checkpoint is damaged" in said
    assert not (tmp_path / "o").exists()
