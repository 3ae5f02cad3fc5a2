"""Activations rounded to 8 bits, token by token or group by group of a token's inputs, in Triton.

As compressed-tensors rounds them: the scale is the largest magnitude over 127.5 (int8: integers from -128 to 127) or
over 448 (e4m3), that of zeros :data:`LEAST_SCALE`; values are divided by it, clamped, and rounded to nearest, ties to
even. Scales of rows, or groups of them, that are not finite are NaN, so that their products are; infinities under a
scale from outside are clamped.
"""

from __future__ import annotations

from typing import Final, Literal

import torch
import triton
from torch import Tensor

from blade_llm.kernels.linear.gpu import rounded_kernels as kernels

MOST: Final = {"int8": 127.5, "e4m3": 448.0}
"""What the largest magnitude is divided by, for its scale."""
LEAST_SCALE: Final = 2.0**-23
_TYPES = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn}
_BLOCK = 1024
_WARP_ELEMENTS = 256


def round_rows(
    x: Tensor, kind: Literal["int8", "e4m3"], scale: Tensor | None = None, group_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """[tokens, in] as 8-bit values ([tokens, in] int8 or float8_e4m3fn) and their scales ([tokens, groups] fp32).

    ``scale``: one number in fp32, of all tokens (static); None: by the largest magnitude (dynamic). ``group_size``:
    inputs that share a scale, the last ones may be fewer; None: all.
    """
    tokens, inputs = x.shape
    x = x.contiguous()
    group = min(group_size or inputs, inputs)
    groups = -(-inputs // group)
    values = torch.empty(tokens, inputs, dtype=_TYPES[kind], device=x.device)
    scales = torch.empty(tokens, groups, device=x.device)
    if tokens:
        block = min(triton.next_power_of_2(group), _BLOCK)
        kernels.round_group[(tokens, groups)](
            x,
            scales if scale is None else scale,
            values,
            scales,
            INPUTS=inputs,
            GROUP=group,
            STATIC=scale is not None,
            KIND=kind,
            MOST=MOST[kind],
            LEAST=LEAST_SCALE,
            BLOCK=block,
            num_warps=max(1, block // _WARP_ELEMENTS),
        )
    return values, scales
