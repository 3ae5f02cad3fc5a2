"""Outlier channels for a trained model, which computes the same function with them as without.

Activations of large language models have a few channels, the same ones in all layers, that are many times larger than
the others (Dettmers et al., arXiv 2208.07339, §4; Xiao et al., arXiv 2211.10438, §3): the reason for SmoothQuant, AWQ
and GPTQ's order of columns. A small model that was trained shortly has none, and rounding it to the nearest does
little harm. So the gains of its norms are multiplied by a power of two on a few channels, and what follows is divided
by it. A power of two changes no digit of a floating-point number: unquantised, both models compute the same.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

CHANNELS: Final = 3
"""Of 256: 1 %, as in LLM.int8()'s study."""
FACTOR: Final = 64.0
"""SmoothQuant's study finds outliers about 100 times larger than most activations."""
FOLLOWING: Final = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Each norm of a Llama layer, and the linear layers that read it alone."""


def with_outliers(source: Path, target: Path, channels: int = CHANNELS, factor: float = FACTOR) -> list[int]:
    """Write ``source``'s model with outlier channels as ``target``; the channels, largest first.

    Raises:
        ValueError: ``factor`` is not a power of two, so that the function would not stay the same.
    """
    if torch.frexp(torch.tensor(factor)).mantissa != 0.5:
        raise ValueError(f"factor {factor} is not a power of two; give 8, 16 or 32")
    tensors = load_file(source / "model.safetensors")
    chosen = loudest(tensors, channels)
    for layer in _layers(tensors):
        for norm, linears in FOLLOWING.items():
            tensors[f"{layer}.{norm}.weight"][chosen] *= factor
            for linear in linears:
                tensors[f"{layer}.{linear}.weight"][:, chosen] /= factor
    staging = target.with_name(f"{target.name}.staging")
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(source, staging)
    save_file(tensors, staging / "model.safetensors", metadata={"format": "pt"})
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)
    return chosen


def loudest(tensors: dict[str, Tensor], channels: int) -> list[int]:
    """The channels that the layers read with the largest weights: what a large activation of theirs is divided by
    leaves them most."""
    total = torch.zeros(tensors["model.norm.weight"].shape[0])
    for layer in _layers(tensors):
        for linears in FOLLOWING.values():
            for linear in linears:
                columns = tensors[f"{layer}.{linear}.weight"].float().square().mean(0)
                total += (columns / columns.mean()).log()
    return torch.topk(total, channels).indices.tolist()


def _layers(tensors: dict[str, Tensor]) -> list[str]:
    names = {name.partition(".input_layernorm")[0] for name in tensors if name.endswith(".input_layernorm.weight")}
    return sorted(names, key=lambda name: int(name.rpartition(".")[2]))
