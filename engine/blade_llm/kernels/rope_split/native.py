"""The split and rotation in C++ (``rope_write_kv/native.cpp``)."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from blade_llm.kernels.native.functions import IS_BF16, bind
from blade_llm.kernels.rope_split import torch as _reference


def rope_split(
    qkv: Tensor, angles: tuple[Tensor, Tensor] | None, queries: Tensor, keys: Tensor, values: Tensor
) -> None:
    rows, num_heads, head_dim = queries.shape
    is_bf16 = IS_BF16.get(qkv.dtype)
    whole = qkv.is_contiguous() and queries.is_contiguous() and keys.stride() == values.stride()
    if is_bf16 is None or not whole or keys.stride()[1:] != (head_dim, 1) or keys.stride(0) % head_dim:
        _reference.rope_split(qkv, angles, queries, keys, values)
        return
    turns = (None, None) if angles is None else (angles[0].data_ptr(), angles[1].data_ptr())
    targets = queries.data_ptr(), keys.data_ptr(), values.data_ptr()
    sizes = rows, num_heads, keys.stride(0) // head_dim, head_dim
    _split()(is_bf16, qkv.data_ptr(), *turns, *targets, *sizes)


@cache
def _split() -> Any:
    return bind("rope_split", "ippppppnnnn")
