"""Quantised weights: of random numbers, and of a weight rounded to the nearest levels."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.quantized import QuantizedWeight

Weight = TypeVar("Weight", QuantizedWeight, Float8Weight, QuantizedWeight | Float8Weight)


def random_weight(
    outputs: int,
    inputs: int,
    *,
    bits: int = 4,
    group_size: int = 64,
    zeros: bool = True,
    scale_dtype: torch.dtype = torch.float16,
    ordered: bool = False,
    seed: int = 0,
) -> QuantizedWeight:
    """Every integer and zero point is as likely; ``group_size`` of ``inputs`` or more: one group a row."""
    generator = torch.Generator().manual_seed(seed)
    group_size = min(group_size, inputs)
    groups = outputs, -(-inputs // group_size)
    return QuantizedWeight(
        bits=bits,
        integers=torch.randint(2**bits, (outputs, inputs), dtype=torch.uint8, generator=generator),
        scales=(torch.rand(groups, generator=generator) * 0.01 + 0.005).to(scale_dtype),
        zeros=torch.randint(2**bits, groups, dtype=torch.uint8, generator=generator) if zeros else None,
        group_size=group_size,
        order=torch.randperm(inputs, generator=generator) if ordered else None,
    )


def random_float8(
    outputs: int, inputs: int, block: tuple[int, int], scale_dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> Float8Weight:
    """Every e4m3 number but NaN is as likely, subnormal ones and negative zeros too."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(255, (outputs, inputs), dtype=torch.uint8, generator=generator)
    bits[bits == 127] = 255 - 127
    blocks = [-(-size // part) for size, part in zip((outputs, inputs), block, strict=True)]
    scales = (torch.rand(*blocks, generator=generator) * 0.01 + 0.005).to(scale_dtype)
    return Float8Weight(bits.view(torch.float8_e4m3fn), scales, block)


def on(device: torch.device, weight: Weight) -> Weight:
    """The weight with its tensors on ``device``."""
    values = {each.name: getattr(weight, each.name) for each in fields(weight)}
    return replace(weight, **{name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)})


def rounded_weight(weight: Tensor, *, bits: int = 4, group_size: int = 32, ordered: bool = False) -> QuantizedWeight:
    """``weight`` ([out, in]) rounded to even levels from the least to the largest of each group."""
    inputs = weight.shape[1]
    order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs)) if ordered else None
    columns = weight.float() if order is None else weight.float()[:, order]
    group_size = group_size if inputs % group_size == 0 else inputs
    groups = columns.unflatten(1, (-1, group_size))
    least = groups.amin(2, keepdim=True).clamp_(max=0)
    most = groups.amax(2, keepdim=True).clamp_(min=0)
    scales = ((most - least) / (2**bits - 1)).clamp_(min=1e-6).half().float()
    zeros = (-least / scales).round()
    integers = (groups / scales + zeros).round().clamp_(0, 2**bits - 1)
    return QuantizedWeight(
        bits, integers.flatten(1).byte(), scales[..., 0].half(), zeros[..., 0].byte(), group_size, order
    )
