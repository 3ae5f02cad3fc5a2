"""The split and rotation in C++ (``rope_write_kv/native.cpp``)."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.native.functions import IS_BF16, bind
from blade_llm.kernels.rope_split import torch as _reference


def rope_split(
    qkv: Tensor, angles: tuple[Tensor, Tensor] | None, queries: Tensor, keys: Tensor, values: Tensor
) -> None:
    rows, num_heads, head_dim = queries.shape
    is_bf16 = IS_BF16.get(qkv.dtype)
    if is_bf16 is None or not _writable(qkv, angles, queries, keys, values):
        _reference.rope_split(qkv, angles, queries, keys, values)
        return
    turns = (None, None) if angles is None else (angles[0].data_ptr(), angles[1].data_ptr())
    targets = queries.data_ptr(), keys.data_ptr(), values.data_ptr()
    sizes = rows, num_heads, keys.stride(0) // head_dim, head_dim
    _split()(is_bf16, qkv.data_ptr(), *turns, *targets, *sizes)


def _writable(qkv: Tensor, angles: tuple[Tensor, Tensor] | None, queries: Tensor, keys: Tensor, values: Tensor) -> bool:
    rows, num_heads, head_dim = queries.shape
    return (
        qkv.dtype is queries.dtype is keys.dtype is values.dtype
        and qkv.is_contiguous()
        and qkv.numel() == 3 * queries.numel()
        and queries.is_contiguous()
        and keys.shape == values.shape == (num_heads, rows, head_dim)
        and keys.stride() == values.stride() == (keys.stride(0), head_dim, 1)
        and keys.stride(0) % head_dim == 0
        and head_dim % 2 == 0
        and all(
            each.dtype is torch.float32 and each.is_contiguous() and each.shape == (rows, head_dim // 2)
            for each in angles or ()
        )
    )


@cache
def _split() -> Any:
    return bind("rope_split", "ippppppnnnn")
