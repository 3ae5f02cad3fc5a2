"""Random LoRA adapters as PEFT saves them, and what they make of a model when they are merged into it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from engine_support.family_proof import EveryPosition
from engine_support.runner_driver import Driver
from safetensors.torch import load_file, save_file

from blade_llm.lora.targets import Targets
from blade_llm.models.implementation import read_model_config
from blade_llm.runner.torch_runner import TorchRunner

KIND: dict[str, Callable[[str], bool]] = {
    "every layer": lambda place: True,
    "queries, keys and values": lambda place: place.endswith("attention.qkv"),
    "output": lambda place: place.endswith("attention.output"),
    "gate and up": lambda place: place.endswith("mlp.up"),
    "down": lambda place: place.endswith("mlp.down"),
}
"""The kinds of layers that adapters wrap, by their place in the model."""
FORMS = [
    *("llama", "llama-biases", "gemma2", "olmo2", "phi", "mixtral", "qwen2-moe-some", "qwen3-moe"),
    *("deepseek-v2", "deepseek-v2-lite", "deepseek-v3-halves", "phi3", "internlm2", "glm4", "gpt-neox", "gpt-j"),
    *("falcon", "falcon-new", "falcon-2", "falcon-rw", "opt", "gpt2", "bloom", "stablelm-parallel", "baichuan"),
    "chatglm",
]
"""Rows whose linear layers are made of a checkpoint's in different ways; those of each other row are made as in one of
these."""


def targets_of(folder: Path, impl: Any = "auto") -> Targets:
    """The modules of a model that adapters may have."""
    return Targets.of(read_model_config(folder, impl))


def write_adapter(
    folder: Path,
    targets: Targets,
    *,
    rank: int = 8,
    seed: int = 0,
    wanted: Callable[[str], bool] = KIND["every layer"],
    modules: Sequence[str] | None = None,
    size: float = 0.4,
    pickled: bool = False,
    **config: Any,
) -> Path:
    """Save a random adapter for ``modules`` (default: all at the places that are ``wanted``)."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    names = modules if modules is not None else [m for m in targets.modules if wanted(targets.find(m).place)]
    fields = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(names),
        "bias": "none",
        "task_type": "CAUSAL_LM",
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    tensors = {}
    for name in names:
        part, own = targets.find(name).part, int(fields.get("rank_pattern", {}).get(name, rank))
        # As large as what the layer computes itself, so that a forgotten or misplaced part shows.
        scale = size / math.sqrt(part.inputs * own)
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(own, part.inputs, generator=generator) * scale
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(part.outputs, own, generator=generator) * 0.5
    if pickled:
        torch.save(tensors, folder / "adapter_model.bin")
    else:
        save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merge(model: Path, adapter: Path, out: Path, impl: Any = "auto") -> Path:
    """The model with ``W + scale * B A`` in place of each ``W``, computed in fp64; scales by alpha / r."""
    shutil.copytree(model, out)
    config = json.loads((adapter / "adapter_config.json").read_text())
    factors, weights = load_file(adapter / "adapter_model.safetensors"), load_file(out / "model.safetensors")
    targets = targets_of(model, impl)
    ours = read_model_config(model, impl).tensors
    theirs = ours.found_in(weights)
    modules = {name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in factors}
    for module in modules:
        a, b = (factors[f"base_model.model.{module}.lora_{half}.weight"].double() for half in "AB")
        delta = config["lora_alpha"] / len(a) * b @ a
        target = targets.find(module)
        parts, stored = ours.linears[target.place].parts, theirs.linears[target.place].parts
        name = f"{stored[parts.index(target.part)].module}.weight"
        weights[name] = (weights[name].double() + (delta.t() if target.part.transposed else delta)).float().contiguous()
    save_file(weights, out / "model.safetensors")
    return out


class ThroughRunner:
    """A model as transformers' are called, computed by a runner."""

    def __init__(self, runner: TorchRunner, adapter: int = 0) -> None:
        self._model = EveryPosition(runner.model)
        runner.model = self._model  # type: ignore[assignment]
        self._driver = Driver(runner)
        self._driver.adapter = adapter

    def __call__(self, token_ids: torch.Tensor) -> Any:
        tokens = token_ids[0].tolist()
        self._driver.enter(0, tokens)
        self._driver.step({0: len(tokens)})
        logits = self._model.logits_of_step
        self._driver.leave(0)
        return SimpleNamespace(logits=logits[None])
