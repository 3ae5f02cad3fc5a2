"""RMS normalisation in C++ (``native.cpp``)."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.native.functions import IS_BF16, bind
from blade_llm.kernels.rms_norm import torch as _reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, unit_offset: bool = False) -> Tensor:
    is_bf16 = IS_BF16.get(x.dtype)
    if is_bf16 is None or not x.is_contiguous() or weight.dtype != x.dtype:
        return _reference.rms_norm(x, weight, eps, unit_offset)
    out = torch.empty_like(x)
    hidden = weight.shape[0]
    rows = x.numel() // hidden
    _norm()(is_bf16, x.data_ptr(), None, None, weight.data_ptr(), out.data_ptr(), rows, hidden, eps, unit_offset)
    return out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, unit_offset: bool = False
) -> tuple[Tensor, Tensor]:
    is_bf16 = IS_BF16.get(x.dtype)
    if is_bf16 is None or not (x.is_contiguous() and residual.is_contiguous()) or weight.dtype != x.dtype:
        return _reference.add_rms_norm(x, residual, weight, eps, unit_offset)
    out = torch.empty_like(x)
    hidden = weight.shape[0]
    rows = x.numel() // hidden
    total = x.data_ptr()
    _norm()(
        is_bf16, total, residual.data_ptr(), total, weight.data_ptr(), out.data_ptr(), rows, hidden, eps, unit_offset
    )
    return out, x


@cache
def _norm() -> Any:
    return bind("rms_norm", "ipppppnnfi")
