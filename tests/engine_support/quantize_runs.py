"""Runs ``blade_llm_quantize`` in this process, and looks at what it made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from engine_support.stored_tensors import tensors_of
from safetensors.torch import save_file
from torch import Tensor

from blade_llm.cli.quantize import main
from blade_llm.models.implementation import read_model_config
from blade_llm.models.parameters import Parameters
from blade_llm.quantize.report import REPORT_NAME
from blade_llm.weights.sources import SafetensorsWeights

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
"""Groups of 32 divide the inputs of all layers."""
BLOCKS = ("--bit", "4", "--block_wise_quant", "--block_size", "32")
FORMS: dict[str, tuple[str, ...]] = {
    "8 bits": (),
    "8 bits, groups": ("--block_wise_quant", "--block_size", "32"),
    "4 bits": ("--bit", "4"),
    "4 bits, groups": BLOCKS,
    "4 bits, zero points": (*BLOCKS, "--asymmetric"),
    "3 bits, zero points": ("--bit=3", "--asymmetric", "--block_wise_quant=true", "--block_size=16"),
    "fp8": ("--quant_dtype", "fp8"),
}
"""Flags for each form of the output."""


def quantize(model: Path, output_dir: Path, *flags: str) -> int:
    return main(["--model", str(model), "--output_dir", str(output_dir), *flags])


def content(folder: Path) -> dict[str, bytes]:
    """Every file's bytes, but for times in the report."""
    found = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    report = json.loads(found[REPORT_NAME])
    for each in (report, *report["tensors"].values()):
        assert each.pop("seconds") >= 0
    return {**found, REPORT_NAME: json.dumps(report).encode()}


def stored_linears(folder: Path) -> dict[str, Tensor]:
    """fp32 weights of all linear layers, dequantised, with rows in the checkpoint's own order."""
    config = read_model_config(folder)
    source = SafetensorsWeights(folder, config, torch.device("cpu"), torch.float32)
    parameters = Parameters(source, config.tensors.found_in(source.names))
    return {
        part.module: parameters.read((replace(part.weight, rows=None, unit_rows=False),))
        for linear in parameters.map.linears.values()
        for part in linear.parts
    }


def with_weights(folder: Path, target: Path, weights: dict[str, Tensor]) -> Path:
    """A copy of an unquantised model with other ``weights`` of linear layers, by module."""
    target.mkdir()
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    changed = {f"{module}.weight": weight for module, weight in weights.items()}
    tensors = tensors_of(folder)
    assert changed.keys() <= tensors.keys()
    save_file({**tensors, **changed}, target / "model.safetensors", {"format": "pt"})
    return target
