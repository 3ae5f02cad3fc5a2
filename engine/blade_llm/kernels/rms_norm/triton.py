"""RMS normalisation in Triton: one program a token, its whole row in registers, so that it is read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    eps,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    at = tl.program_id(0).to(tl.int64) * HIDDEN + columns
    x = tl.load(x_ptr + at, inside, 0.0)
    if ADD:
        # Rounded to the storage type before the statistics are taken, as in the reference.
        x = (x.to(tl.float32) + tl.load(residual_ptr + at, inside, 0.0).to(tl.float32)).to(x.dtype)
        tl.store(x_ptr + at, x, inside)
    y = x.to(tl.float32)
    y *= 1.0 / tl.sqrt(tl.sum(y * y, 0) / HIDDEN + eps)
    weight = tl.load(weight_ptr + columns, inside, 0.0).to(tl.float32)
    y = y * (1.0 + weight) if UNIT_OFFSET else y.to(x.dtype).to(tl.float32) * weight
    tl.store(out_ptr + at, y.to(x.dtype), inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, unit_offset: bool = False) -> Tensor:
    return _launch(x, None, weight, eps, unit_offset)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, unit_offset: bool = False
) -> tuple[Tensor, Tensor]:
    return _launch(x, residual, weight, eps, unit_offset), x


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, unit_offset: bool) -> Tensor:
    tokens, hidden = x.shape
    out = torch.empty_like(x)
    if tokens:
        block = triton.next_power_of_2(hidden)
        _rms_norm_kernel[(tokens,)](
            x,
            x if residual is None else residual,
            weight,
            out,
            eps,
            HIDDEN=hidden,
            BLOCK=block,
            ADD=residual is not None,
            UNIT_OFFSET=unit_offset,
            num_warps=min(max(block // 512, 1), 16),
        )
    return out
