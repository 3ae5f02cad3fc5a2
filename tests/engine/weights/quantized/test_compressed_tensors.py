"""compressed-tensors checkpoints: the numbers that are stored, and what a model of them says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.compressed_tensors import F8, FORMS, W4, W8, compressed
from engine_support.quantized_checkpoints import SIZES, edited, read_linears, round_weight, save_quantized
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import engine_config, reference_greedy
from safetensors.torch import load_file

from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.models.implementation import read_model_config
from blade_llm.runner import build_runner

SLOW = r"(\w*.?)*" * 8 + r"\1\2\3\4\5\6\7\8\d\d\d"
"""Of which there are more ways to match than anybody could try."""


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_the_numbers_are_those_that_were_stored(tmp_path: Path, form: Any) -> None:
    save_quantized(tmp_path, "qwen2", *form, intermediate_size=72, num_key_value_heads=1)
    expected = load_file(tmp_path / "plain" / "model.safetensors")
    for module, weight in read_linears(tmp_path).items():
        assert torch.equal(weight, expected[f"{module}.weight"]), module


def spaced(integers: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, count] to [rows, words] int32: as many in each as have room, as the package did up to version 0.12."""
    each = 32 // bits
    padded = torch.nn.functional.pad(integers, (0, -integers.shape[1] % each)).unflatten(1, (-1, each))
    return (padded << torch.arange(each) * bits).sum(2).to(torch.int32)


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
@pytest.mark.parametrize("symmetric", [True, False])
def test_integers_with_gaps(tmp_path: Path, bits: int, symmetric: bool) -> None:
    config, quantize = compressed({**W4, "num_bits": bits, "symmetric": symmetric}, "pack-quantized")
    tight: dict[str, tuple[int, ...]] = {}

    def older(module: str, weight: torch.Tensor) -> Any:
        if (made := quantize(module, weight)) is None:
            return None
        rounded = round_weight(weight, bits, 16, symmetric=symmetric)
        stored = {**made[0], f"{module}.weight_packed": spaced(rounded.integers, bits)}
        if not symmetric:
            stored[f"{module}.weight_zero_point"] = spaced(rounded.zeros.t(), bits).t().contiguous()
        tight.update({name: tuple(tensor.shape) for name, tensor in made[0].items()})
        return stored, made[1]

    save_quantized(tmp_path, "qwen2", config, older, **SIZES)
    found = load_file(tmp_path / "model.safetensors")
    assert all(tuple(found[name].shape) != shape for name, shape in tight.items() if name.endswith("weight_packed"))
    expected = load_file(tmp_path / "plain" / "model.safetensors")
    for module, weight in read_linears(tmp_path).items():
        assert torch.equal(weight, expected[f"{module}.weight"]), module


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_greedy_tokens_are_those_of_transformers(tmp_path: Path, form: Any) -> None:
    reference = save_quantized(tmp_path, "llama", *form, **SIZES)
    driver = Driver(build_runner(engine_config(tmp_path)))
    prompt = prompt_of(40)
    assert driver.generate(0, prompt, 16) == reference_greedy(reference, prompt, 16)


def test_groups_by_layer_and_ignored_ones(tmp_path: Path) -> None:
    """A regular expression before the class of all layers, a name before both; formats by group."""
    config, four = FORMS["4 bits, zero points"]
    _, eight = FORMS["8 bits"]
    _, floats = FORMS["fp8"]
    special = "model.layers.2.self_attn.k_proj"

    def quantize(module: str, weight: torch.Tensor) -> Any:
        if "layers.0.mlp" in module:
            return None
        if module == special:
            return floats(module, weight)
        return (eight if module.endswith(("k_proj", "down_proj")) else four)(module, weight)

    def group(targets: list[str], weights: dict[str, Any], form: str) -> dict[str, Any]:
        return {"targets": targets, "weights": weights, "format": form}

    mixed = {
        **config,
        "format": "mixed-precision",
        "ignore": ["lm_head", r"re:.*layers\.0\.mlp.*"],
        "config_groups": {
            "a": group(["Linear"], {**W4, "symmetric": False}, "pack-quantized"),
            "b": group([r"re:.*k_proj", r"re:.*down_proj$"], W8, "int-quantized"),
            "c": group([special], F8, "float-quantized"),
        },
    }
    reference = save_quantized(tmp_path, "qwen2", mixed, quantize, **SIZES)
    driver = Driver(build_runner(engine_config(tmp_path)))
    assert driver.generate(0, prompt_of(40), 16) == reference_greedy(reference, prompt_of(40), 16)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": "nvfp4-pack-quantized"}, "'format' 'nvfp4-pack-quantized' is not supported; 'pack-quantized', "),
        ({"format": "marlin-24"}, "'format' 'marlin-24' is not supported"),
        ({"quantization_status": "calibration"}, "'quantization_status' 'calibration' is not supported"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "'sparsity_config' is not supported"),
        ({"weights": {**W4, "num_bits": 1}}, "compressed-tensors (pack-quantized) with 1 bits"),
        ({"weights": {**W4, "strategy": "block"}}, "'strategy' 'block' with integers ('quantization_config')"),
        ({"weights": {**W4, "type": "float"}}, "with floats of 4 bits is not supported"),
        ({"weights": {**W4, "group_size": None}}, "'strategy' 'group' without 'group_size', which it needs"),
        ({"weights": {**F8, "strategy": "group"}}, "'strategy' 'group' without 'group_size', which it needs"),
        ({"ignore": ["re:("]}, "'re:(' is no regular expression"),
        ({"ignore": ["re:" + "a" * 2001]}, "a regular expression of 2001 characters; at most 2000 are read"),
        ({"ignore": [f"re:{SLOW}"]}, "is a regular expression that takes more than 0.01 s to match 'model.layers."),
        ({"config_groups": None}, "missing required field `config_groups`"),
    ],
)
def test_settings_that_are_not_read_are_named(
    tmp_path: Path, changes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blade_llm.models.quantized.fields.MATCH_SECONDS", 0.01)
    config, quantize = FORMS["4 bits"]
    fields = {**config, **changes}
    if weights := fields.pop("weights", None):
        fields["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": weights}}
    save_quantized(tmp_path, "qwen2", fields, quantize, **SIZES)
    with pytest.raises((ModelFilesError, UnsupportedModelError)) as caught:
        read_model_config(tmp_path)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("weight_scale", None, r"1 of \d+ tensors are missing: .*down_proj.weight_scale"),
        ("weight_shape", torch.tensor([64, 95]), r"down_proj.weight_shape is \[64, 95\], .* asks for \[64, 96\]"),
        ("weight_scale", torch.full((64, 6), torch.inf).half(), "weight_scale' holds NaN or infinite numbers"),
        ("weight_packed", torch.zeros(64, 12), "weight_packed is F32 in .*: it must be I32 or U32"),
    ],
)
def test_tensors_that_are_missing_or_wrong_are_named(
    tmp_path: Path, name: str, value: torch.Tensor | None, reason: str
) -> None:
    save_quantized(tmp_path, "qwen2", *FORMS["4 bits"], **SIZES)
    edited(tmp_path, **{name: value})
    with pytest.raises(ModelFilesError, match=reason):
        build_runner(engine_config(tmp_path))
