"""Attention without a KV cache in C++ (``paged_attention/native.cpp``).

What it computes of a query does not depend on which others are computed with it. It takes bf16; fp32 is left to torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.full_attention import torch as _reference
from blade_llm.kernels.native.functions import IS_BF16, bind


def full_attention(queries: Tensor, keys: Tensor, values: Tensor, sequences: int) -> None:
    rows, num_heads, head_dim = queries.shape
    strides = (head_dim, 1)
    sides = queries.stride()[1:] == strides and keys.stride()[1:] == strides and values.stride()[1:] == strides
    between = keys.stride(0), values.stride(0)
    if queries.dtype != torch.bfloat16 or not sides or between[0] != between[1] or between[0] % head_dim:
        _reference.full_attention(queries, keys, values, sequences)
        return
    address = queries.data_ptr()
    sizes = keys.stride(0) // head_dim, sequences, rows // sequences, keys.shape[1] // sequences, num_heads, head_dim
    pointers = address, address, queries.stride(0), keys.data_ptr(), values.data_ptr()
    _attend()(IS_BF16[queries.dtype], *pointers, *sizes, head_dim**-0.5)


@cache
def _attend() -> Any:
    return bind("full_attention", "ippnppnnnnnnf")
