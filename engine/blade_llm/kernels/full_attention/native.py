"""Attention without a KV cache in C++ (``paged_attention/native.cpp``), where that is faster than torch's.

What it computes of a query does not depend on which others are computed with it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.full_attention import torch as _reference
from blade_llm.kernels.native import isa
from blade_llm.kernels.native.functions import bind


def full_attention(queries: Tensor, keys: Tensor, values: Tensor, sequences: int) -> None:
    # Without AMX, and of heads that do not fill its tiles, torch's takes about as long or half.
    if isa() == "amx" and queries.shape[2] % 16 == 0 and _readable(queries, keys, values, sequences):
        attend(queries, keys, values, sequences)
    else:
        _reference.full_attention(queries, keys, values, sequences)


def attend(queries: Tensor, keys: Tensor, values: Tensor, sequences: int) -> None:
    """In C++ whatever the CPU. bf16, equally many rows of each sequence, heads of keys as far apart as of values."""
    rows, num_heads, head_dim = queries.shape
    address = queries.data_ptr()
    sizes = keys.stride(0) // head_dim, sequences, rows // sequences, keys.shape[1] // sequences, num_heads, head_dim
    _attend()(1, address, address, queries.stride(0), keys.data_ptr(), values.data_ptr(), *sizes, head_dim**-0.5)


def _readable(queries: Tensor, keys: Tensor, values: Tensor, sequences: int) -> bool:
    rows, num_heads, head_dim = queries.shape
    tensors = queries, keys, values
    return (
        all(each.dtype is torch.bfloat16 and each.stride()[1:] == (head_dim, 1) for each in tensors)
        and keys.shape == values.shape == (num_heads, keys.shape[1], head_dim)
        and keys.stride(0) == values.stride(0)
        and keys.stride(0) % head_dim == 0
        and rows % sequences == keys.shape[1] % sequences == 0
    )


@cache
def _attend() -> Any:
    return bind("full_attention", "ippnppnnnnnnf")
