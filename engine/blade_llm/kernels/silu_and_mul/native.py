"""SiLU times the other half in C++ (``native.cpp``)."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from blade_llm.kernels.native.functions import IS_BF16, bind
from blade_llm.kernels.silu_and_mul import torch as _reference


def silu_and_mul(gate_up: Tensor) -> Tensor:
    is_bf16 = IS_BF16.get(gate_up.dtype)
    if is_bf16 is None or not gate_up.is_contiguous():
        return _reference.silu_and_mul(gate_up)
    tokens, both = gate_up.shape
    out = gate_up.new_empty(tokens, both // 2)
    _gate()(is_bf16, gate_up.data_ptr(), out.data_ptr(), tokens, both // 2)
    return out


@cache
def _gate() -> Any:
    return bind("silu_and_mul", "ippnn")
