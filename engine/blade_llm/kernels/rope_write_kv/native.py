"""Rotation and cache write in C++ (``native.cpp``)."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.native.functions import IS_BF16, bind
from blade_llm.kernels.native.kv_rows import address_of
from blade_llm.kernels.rope_write_kv import torch as _reference

MAX_HEAD_DIM = 1024


def rope_write_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    unit_offset: bool = False,
    rows: QuantizedRows | None = None,
) -> Tensor:
    dtype = qkv.dtype
    is_bf16 = IS_BF16.get(dtype)
    _, _, kv_heads, width = k_cache.shape
    head_dim, stored = (width, k_cache.dtype) if rows is None else (rows.head_dim, rows.dtype)
    if is_bf16 is None or stored != dtype or not qkv.is_contiguous() or head_dim > MAX_HEAD_DIM:
        return _reference.rope_write_kv(
            qkv, cos, sin, slot_mapping, k_cache, v_cache, num_heads, q_norm, k_norm, eps, unit_offset, rows
        )
    tokens = qkv.shape[0]
    out = qkv.new_empty(tokens, num_heads, head_dim)
    norms = (None, None) if q_norm is None or k_norm is None else (q_norm.data_ptr(), k_norm.data_ptr())
    sources = qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(), slot_mapping.data_ptr()
    targets = k_cache.data_ptr(), v_cache.data_ptr(), out.data_ptr()
    _rope()(
        is_bf16, *sources, *targets, tokens, num_heads, kv_heads, head_dim, *norms, eps, unit_offset, address_of(rows)
    )
    return out


@cache
def _rope() -> Any:
    return bind("rope_write_kv", "ipppppppnnnnppfip")
