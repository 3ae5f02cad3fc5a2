"""Layer normalisation in C++ (``native.cpp``)."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.layer_norm import torch as _reference
from blade_llm.kernels.native.functions import IS_BF16, bind


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    if not _serves(x, x, weight, bias):
        return _reference.layer_norm(x, weight, bias, eps)
    return _launch(x, None, weight, bias, eps)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    if not _serves(x, residual, weight, bias):
        return _reference.add_layer_norm(x, residual, weight, bias, eps)
    return _launch(x, residual, weight, bias, eps), x


def _serves(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    same = weight.dtype == x.dtype == residual.dtype and (bias is None or bias.dtype == x.dtype)
    return x.dtype in IS_BF16 and same and x.is_contiguous() and residual.is_contiguous()


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """The norm of ``x``, which becomes the sum where there is a ``residual``."""
    out = torch.empty_like(x)
    hidden = weight.shape[0]
    added, shift = (None if tensor is None else tensor.data_ptr() for tensor in (residual, bias))
    total = None if residual is None else x.data_ptr()
    pointers = x.data_ptr(), added, total, weight.data_ptr(), shift, out.data_ptr()
    _norm()(IS_BF16[x.dtype], *pointers, x.numel() // hidden, hidden, eps)
    return out


@cache
def _norm() -> Any:
    return bind("layer_norm", "ippppppnnf")
