"""SiLU times the other half, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _silu_and_mul_kernel(gate_up_ptr, out_ptr, INNER: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < INNER
    gate = tl.load(gate_up_ptr + token * 2 * INNER + columns, inside, 0.0)
    up = tl.load(gate_up_ptr + token * 2 * INNER + INNER + columns, inside, 0.0)
    wide = gate.to(tl.float32)
    # Rounded to the storage type between the two products, as in the reference.
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out_ptr + token * INNER + columns, (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), inside)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    tokens, both = gate_up.shape
    inner = both // 2
    out = torch.empty(tokens, inner, dtype=gate_up.dtype, device=gate_up.device)
    if tokens:
        grid = (tokens, triton.cdiv(inner, _BLOCK))
        _silu_and_mul_kernel[grid](gate_up, out, INNER=inner, BLOCK=_BLOCK, num_warps=4)
    return out
