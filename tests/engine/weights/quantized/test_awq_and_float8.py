"""AWQ and FP8 checkpoints: the numbers that are stored, and what a model of them says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.pairwise import in_turn
from engine_support.quantized_checkpoints import SIZES, awq, edited, float8, read_linears, save_quantized
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import engine_config, reference_greedy
from safetensors.torch import load_file, save_file

from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.models.implementation import read_model_config
from blade_llm.runner import build_runner

FORMS = {
    "awq": awq(16),
    "awq, whole rows": awq(-1),
    "fp8, blocks": float8((32, 32)),
    "fp8, blocks, bf16 scales": float8((32, 32), scale_dtype=torch.bfloat16),
    "fp8, one scale": float8(None),
}


@pytest.mark.parametrize(("form", "family"), in_turn(list(FORMS), ["llama", "qwen2"]))
def test_numbers_and_greedy_tokens(tmp_path: Path, form: str, family: str) -> None:
    reference = save_quantized(tmp_path, family, *FORMS[form], **SIZES)
    expected = load_file(tmp_path / "plain" / "model.safetensors")
    for module, weight in read_linears(tmp_path).items():
        assert torch.equal(weight, expected[f"{module}.weight"]), module
    driver = Driver(build_runner(engine_config(tmp_path)))
    prompt = prompt_of(40)
    assert driver.generate(0, prompt, 24) == reference_greedy(reference, prompt, 24)


def test_scales_of_activations_are_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of static quantisation: nothing is said of them, as of tensors that no part of the model takes."""
    save_quantized(tmp_path, "qwen2", *FORMS["fp8, one scale"], **SIZES)
    tensors = load_file(tmp_path / "model.safetensors")
    scales = {f"model.layers.{i}.mlp.down_proj.input_scale": torch.ones(1) for i in range(3)}
    save_file({**tensors, **scales, "model.layers.0.odd": torch.ones(1)}, tmp_path / "model.safetensors")
    with caplog.at_level("WARNING"):
        build_runner(engine_config(tmp_path))
    assert "1 tensor(s) are not used: model.layers.0.odd" in caplog.text


def test_modules_that_are_left_alone(tmp_path: Path) -> None:
    """Named in the configuration, all of them below a name."""
    config, quantize = float8((32, 32))

    def some(module: str, weight: torch.Tensor) -> Any:
        return None if "layers.1.mlp" in module else quantize(module, weight)

    excluded = {"modules_to_not_convert": ["lm_head", "model.layers.1.mlp"]}
    reference = save_quantized(tmp_path, "qwen2", {**config, **excluded}, some, **SIZES)
    driver = Driver(build_runner(engine_config(tmp_path)))
    assert driver.generate(0, prompt_of(40), 12) == reference_greedy(reference, prompt_of(40), 12)


@pytest.mark.parametrize(
    ("form", "name", "value", "reason"),
    [
        ("fp8, blocks", "weight_scale_inv", None, r"down_proj.weight is F8_E4M3 in .*the scales .*are missing here"),
        ("fp8, blocks", "weight_scale_inv", torch.ones(2, 2), r"weight_scale_inv is \[2, 2\] in .* asks for \[2, 3\]"),
        ("fp8, blocks", "weight_scale_inv", torch.full((2, 3), torch.nan), "weight_scale_inv' holds NaN"),
        ("fp8, blocks", "weight", torch.full((64, 96), torch.nan).to(torch.float8_e4m3fn), "weight' holds NaN"),
        ("fp8, blocks", "weight", torch.ones(64, 96), "down_proj.weight is F32 in .*: it must be F8_E4M3"),
        ("awq", "qzeros", None, r"1 of \d+ tensors are missing: .*down_proj.qzeros"),
        ("awq", "qweight", torch.zeros(96, 4).int(), r"qweight is \[96, 4\] in .* asks for \[96, 8\]"),
    ],
)  # fmt: skip
def test_tensors_that_are_missing_or_wrong_are_named(
    tmp_path: Path, form: str, name: str, value: torch.Tensor | None, reason: str
) -> None:
    save_quantized(tmp_path, "qwen2", *FORMS[form], **SIZES)
    edited(tmp_path, **{name: value})
    with pytest.raises(ModelFilesError, match=reason):
        build_runner(engine_config(tmp_path))


@pytest.mark.parametrize(
    ("form", "fields", "reason"),
    [
        ("awq", {"version": "gemv"}, "AWQ's 'version' 'gemv' is not supported; 'gemm' is"),
        ("awq", {"version": None, "checkpoint_format": "gemv_fast"}, "AWQ's 'version' 'gemv_fast' is not supported"),
        ("awq", {"zero_point": False}, "AWQ without 'zero_point' is not supported"),
        ("awq", {"bits": 0}, "AWQ with 0 bits ('quantization_config') is not supported; 4 are"),
        ("awq", {"bits": 8}, "AWQ with 8 bits ('quantization_config') is not supported; 4 are"),
        ("fp8, blocks", {"fmt": "e5m2"}, "FP8's 'fmt' 'e5m2' is not supported; 'e4m3' is"),
        ("fp8, blocks", {"weight_block_size": [128]}, "'weight_block_size' must be two positive integers, not [128]"),
    ],
)
def test_settings_that_are_not_read_are_named(tmp_path: Path, form: str, fields: dict[str, Any], reason: str) -> None:
    config, quantize = FORMS[form]
    save_quantized(tmp_path, "qwen2", {**config, **fields}, quantize, **SIZES)
    with pytest.raises((ModelFilesError, UnsupportedModelError)) as caught:
        read_model_config(tmp_path)
    assert reason in str(caught.value)
