"""Activations in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blade_llm.spec.mlp import Activation

_BLOCK = 1024


@triton.jit
def _activate_kernel(
    x_ptr, out_ptr, INNER: tl.constexpr, BLOCK: tl.constexpr, FORMULA: tl.constexpr, GATED: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < INNER
    row = x_ptr + token * (2 * INNER if GATED else INNER)
    x = tl.load(row + columns, inside, 0.0)
    wide = x.to(tl.float32)
    if FORMULA == "silu":
        y = wide / (1.0 + tl.exp(-wide))
    elif FORMULA == "gelu":
        y = 0.5 * wide * (1.0 + tl.erf(wide * 0.7071067811865476))
    elif FORMULA == "gelu_tanh":  # (1 + tanh(y)) / 2 = sigmoid(2y)
        y = wide / (1.0 + tl.exp(-1.5957691216057308 * (wide + 0.044715 * wide * wide * wide)))
    elif FORMULA == "quick_gelu":
        y = wide / (1.0 + tl.exp(-1.702 * wide))
    else:
        y = tl.where(wide < 0.0, 0.0, wide)
        if FORMULA == "relu2":
            y = y * y
    y = y.to(x.dtype)
    if GATED:
        # Rounded to the storage type between the two products, as in the reference.
        up = tl.load(row + INNER + columns, inside, 0.0)
        y = (y.to(tl.float32) * up.to(tl.float32)).to(x.dtype)
    tl.store(out_ptr + token * INNER + columns, y, inside)


def activate(x: Tensor, kind: Activation, gated: bool) -> Tensor:
    tokens, width = x.shape
    inner = width // 2 if gated else width
    out = torch.empty(tokens, inner, dtype=x.dtype, device=x.device)
    if tokens:
        grid = (tokens, triton.cdiv(inner, _BLOCK))
        _activate_kernel[grid](x, out, INNER=inner, BLOCK=_BLOCK, FORMULA=kind, GATED=gated, num_warps=4)
    return out
