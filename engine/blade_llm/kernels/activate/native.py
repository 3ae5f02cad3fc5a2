"""Activations in C++ (``native.cpp``)."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from blade_llm.kernels.activate import torch as _reference
from blade_llm.kernels.activate.kinds import FORMULAS
from blade_llm.kernels.native.functions import IS_BF16, bind
from blade_llm.spec.mlp import Activation


def activate(x: Tensor, kind: Activation, gated: bool) -> Tensor:
    is_bf16 = IS_BF16.get(x.dtype)
    if is_bf16 is None or not x.is_contiguous():
        return _reference.activate(x, kind, gated)
    tokens, width = x.shape
    inner = width // 2 if gated else width
    out = x.new_empty(tokens, inner)
    _activate()(is_bf16, FORMULAS[kind], gated, x.data_ptr(), out.data_ptr(), tokens, inner)
    return out


@cache
def _activate() -> Any:
    return bind("activate", "iiippnn")
