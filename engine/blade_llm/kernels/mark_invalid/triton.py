"""The same in Triton: one launch, where torch needs three."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 64


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["logits_ptr", "tokens_ptr"])
def _mark_invalid_kernel(logits_ptr, tokens_ptr, out_ptr, rows, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    token = tl.load(tokens_ptr + row, inside, 0)
    logit = tl.load(logits_ptr + row.to(tl.int64) * STRIDE + token, inside, 0.0).to(tl.float32)
    tl.store(out_ptr + row, tl.where(logit != logit, -1, token), inside)


def mark_invalid(logits: Tensor, tokens: Tensor) -> Tensor:
    marked = torch.empty_like(tokens)
    rows = len(tokens)
    if rows:
        # A row alone may have any stride, and each would compile a variant.
        stride = logits.stride(0) if rows > 1 else logits.shape[1]
        _mark_invalid_kernel[(triton.cdiv(rows, _BLOCK),)](
            logits, tokens, marked, rows, STRIDE=stride, BLOCK=_BLOCK, num_warps=1
        )
    return marked
