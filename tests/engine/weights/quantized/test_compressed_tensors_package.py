"""The same numbers as the public package of the format has, where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.compressed_tensors import FORMS
from engine_support.quantized_checkpoints import SIZES, read_linears, save_quantized
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import engine_config, load_reference, reference_greedy
from safetensors.torch import load_file

from blade_llm.runner import build_runner

pytest.importorskip("compressed_tensors")

from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme

NAMES = [name for name in FORMS if "act-order" not in name]
"""Newer versions of the package have no act-order."""


@pytest.mark.parametrize("name", NAMES)
def test_it_reads_the_same_numbers(name: str, tmp_path: Path) -> None:
    """To the last bit of the type of the scales, which the package computes in."""
    config, quantize = FORMS[name]
    save_quantized(tmp_path, "qwen2", config, quantize, **SIZES)
    stored = load_file(tmp_path / "model.safetensors")
    scheme = QuantizationScheme(**config["config_groups"]["group_0"])
    compressor = BaseCompressor.get_value_from_registry(config["format"])
    for module, weight in read_linears(tmp_path).items():
        if module != "lm_head":
            own = {key.rpartition(".")[2]: tensor for key, tensor in stored.items() if key.startswith(f"{module}.")}
            theirs = compressor.decompress(own, scheme)["weight"]
            assert torch.equal(weight.to(theirs.dtype), theirs), module


@pytest.mark.parametrize("name", NAMES)
def test_what_it_writes_is_read(name: str, tmp_path: Path) -> None:
    config, _ = FORMS[name]
    group = config["config_groups"]["group_0"]
    scheme = QuantizationScheme(**group)
    compressor = BaseCompressor.get_value_from_registry(config["format"])

    def quantize(module: str, weight: torch.Tensor) -> Any:
        if module == "lm_head":
            return None
        made = compressor.compress({"weight": weight, **parameters(weight, group["weights"])}, scheme)
        stored = {f"{module}.{key}": value for key, value in made.items()}
        return stored, compressor.decompress(made, scheme)["weight"]

    save_quantized(tmp_path, "qwen2", config, quantize, **SIZES)
    expected = load_file(tmp_path / "plain" / "model.safetensors")
    for module, weight in read_linears(tmp_path).items():
        if module != "lm_head":
            assert torch.equal(weight.half().float(), expected[f"{module}.weight"]), module


def parameters(weight: torch.Tensor, weights: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Random scales in fp16, and zero points from one end to the other."""
    rows, columns = weight.shape
    shape = {
        "tensor": lambda: (1,),
        "channel": lambda: (rows, 1),
        "group": lambda: (rows, columns // weights["group_size"]),
        "block": lambda: (rows // weights["block_structure"][0], columns // weights["block_structure"][1]),
    }[weights["strategy"]]()
    generator = torch.Generator().manual_seed(0)
    scales = {"weight_scale": (torch.rand(shape, generator=generator) * 0.01 + 0.001).half()}
    if weights.get("symmetric", True):
        return scales
    half = 2 ** (weights["num_bits"] - 1)
    return {**scales, "weight_zero_point": torch.randint(-half, half, shape, generator=generator, dtype=torch.int8)}


@pytest.mark.parametrize("name", ["4 bits", "4 bits, channels", "8 bits, packed", "fp8"])
def test_transformers_says_the_same_tokens(name: str, tmp_path: Path) -> None:
    """It reads the checkpoint itself, by the package; packed zero points it does not (5.23 with 0.20)."""
    save_quantized(tmp_path, "llama", *FORMS[name], **SIZES)
    reference = load_reference(tmp_path)
    assert any(key.endswith(("weight_packed", "weight_scale")) for key, _ in reference.named_parameters())
    prompt = prompt_of(40)
    driver = Driver(build_runner(engine_config(tmp_path)))
    assert driver.generate(0, prompt, 16) == reference_greedy(reference, prompt, 16)
