"""Rounding of activations in plain equations, and models whose linear layers round their inputs by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Round = Callable[[Tensor], Tensor]


def to_int8(x: Tensor, scale: Tensor | None = None) -> Tensor:
    """``x`` ([..., in] fp32) as compressed-tensors' fake quantisation has it; ``scale``: of all, or by token."""
    if scale is None:
        scale = x.abs().amax(-1, keepdim=True) / 127.5
        scale = scale.where(scale > 0, torch.tensor(torch.finfo(torch.float32).eps))
    return (x / scale).clamp(-128, 127).round() * scale


def to_float8(x: Tensor, scale: Tensor | None = None, size: int | None = None) -> Tensor:
    """The same in e4m3; ``size``: inputs of a token that share a scale."""
    if size is not None:
        return torch.cat([to_float8(part) for part in x.split(size, dim=-1)], dim=-1)
    if scale is None:
        scale = x.abs().amax(-1, keepdim=True) / 448
        scale = scale.where(scale > 0, torch.tensor(torch.finfo(torch.float32).eps))
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def round_inputs_of(model: Any, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Make the linear layers of ``model`` that have a scale in ``tensors``, a checkpoint's, round their inputs as its
    ``quantization_config`` says."""
    for name, module in model.named_modules():
        scales = [key for key in tensors if key.startswith(f"{name}.weight_scale")]
        if isinstance(module, nn.Linear) and scales and (rounds := rounding_of(config, tensors, name)) is not None:
            module.register_forward_pre_hook(lambda _, inputs, rounds=rounds: (rounds(inputs[0]), *inputs[1:]))


def rounding_of(config: Mapping[str, Any], tensors: Mapping[str, Tensor], module: str) -> Round | None:
    """How ``module`` of a checkpoint with ``tensors`` rounds its inputs; None: not at all."""
    static = tensors.get(f"{module}.input_scale")
    if config["quant_method"] == "fp8":
        if config.get("activation_scheme") == "static":
            return lambda x: to_float8(x, static)
        block = config.get("weight_block_size")
        return lambda x: to_float8(x, size=None if block is None else block[1])
    group = next(iter((config.get("config_groups") or {}).values()), {})
    given = group.get("input_activations")
    if given is None:
        return None
    if given["type"] == "float":
        return lambda x: to_float8(x, static, given.get("group_size"))
    return lambda x: to_int8(x, static)
