"""Random adapters for a model's shape, as files, and what they make of transformers' model."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.gpu.machine import DEVICE
from benchmarks.gpu.shapes import Shape
from blade_llm.lora.targets import Targets


def write_adapter(shape: Shape, rank: int) -> Path:
    """A folder with an adapter for all linear layers, in bf16, whose part of each result is a tenth of its inputs."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-adapter-"))
    targets = Targets.of(shape.write(folder / "model"))
    generator = torch.Generator(DEVICE).manual_seed(0)

    def random(rows: int, columns: int, size: float) -> torch.Tensor:
        return (torch.randn(rows, columns, device=DEVICE, generator=generator) * size).bfloat16().cpu()

    tensors = {}
    for module in targets.modules:
        part = targets.find(module).part
        tensors[f"base_model.model.{module}.lora_A.weight"] = random(rank, part.inputs, part.inputs**-0.5)
        tensors[f"base_model.model.{module}.lora_B.weight"] = random(part.outputs, rank, 0.1 * rank**-0.5)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@torch.no_grad()
def merge(model: Any, adapter: Path) -> None:
    """Add the adapter to the weights of transformers' ``model``."""
    tensors = load_file(adapter / "adapter_model.safetensors", device=DEVICE.type)
    names = {name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in tensors}
    for name in names:
        a, b = (tensors[f"base_model.model.{name}.lora_{half}.weight"].float() for half in "AB")
        weight = model.get_submodule(name).weight
        weight.copy_(weight.float() + b @ a)
