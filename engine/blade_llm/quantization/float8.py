"""Weights in fp8 e4m3 (Micikevicius et al., arXiv 2209.05433) with one scale for a tensor, an output or a block.

The scale takes the largest magnitude to 448, the largest e4m3 number. Blocks are 128 by 128, as DeepSeek-V3 has them
(arXiv 2412.19437, §3.3).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.quantization.checks import check_weight

FP8 = torch.float8_e4m3fn
FP8_MOST = torch.finfo(FP8).max
BLOCK = 128

Float8Scaling = Literal["tensor", "channel", "block"]


def quantize_float8(weight: Tensor, scaling: Float8Scaling, scale_dtype: torch.dtype = torch.float32) -> Float8Weight:
    """``weight`` ([out, in], any float) to the nearest e4m3 numbers, multiples of the scales as they are stored.

    Raises ValueError for weights that are not finite."""
    check_weight(weight)
    outputs, inputs = weight.shape
    block = {"tensor": (outputs, inputs), "channel": (1, inputs), "block": (BLOCK, BLOCK)}[scaling]
    padded = F.pad(weight.abs(), (0, -inputs % block[1], 0, -outputs % block[0]))
    most = padded.reshape(-(-outputs // block[0]), block[0], -1, block[1]).amax((1, 3))
    # Rounded to 0 it could not be divided by; a larger one than need be loses nothing, as these are floats.
    scales = scales_to(most, FP8_MOST).clamp_min(torch.finfo(scale_dtype).smallest_normal).to(scale_dtype)
    return Float8Weight(as_float8(weight.float() / _spread(scales.float(), block, weight.shape)), scales, block)


def scales_to(most: Tensor, largest: float) -> Tensor:
    """fp32 scales that take magnitudes ``most`` to ``largest``; 1 where there is nothing but zeros."""
    scales = (most.float() / largest).clamp_min(torch.finfo(torch.float32).smallest_normal)
    return scales.where(most > 0, torch.ones_like(scales))


def as_float8(x: Tensor) -> Tensor:
    """``x`` rounded: torch makes NaN of what is too large, as rounding of the scale can leave it."""
    return x.clamp(-FP8_MOST, FP8_MOST).to(FP8)


def _spread(scales: Tensor, block: tuple[int, int], shape: torch.Size) -> Tensor:
    return scales.repeat_interleave(block[0], 0)[: shape[0]].repeat_interleave(block[1], 1)[:, : shape[1]]
