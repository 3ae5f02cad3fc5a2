"""Paged attention on CPU in C++ (``native.cpp``), straight from the paged cache: nothing is gathered or copied."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.native.functions import bind
from blade_llm.kernels.paged_attention import torch as _reference
from blade_llm.kernels.paged_attention.batch import RaggedBatch

_DTYPES = (torch.float32, torch.bfloat16)
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


class _Step(ctypes.Structure):
    """``Step`` in attend.h."""

    _fields_ = (
        ("sequences", _SIZE),
        ("slots", _POINTER),
        ("query_starts", _POINTER),
        ("seq_lens", _POINTER),
        ("block_table", _POINTER),
        ("table_stride", _SIZE),
        ("block_size", _SIZE),
        ("heads", _SIZE),
        ("kv_heads", _SIZE),
        ("head_dim", _SIZE),
        ("is_bf16", _SIZE),
    )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step's shape as the C++ code reads it, and the tensors it points to."""

    step: _Step
    address: int
    dtype: torch.dtype
    tensors: tuple[Tensor, ...]


def prepare(
    batch: RaggedBatch, block_table: Tensor, k_cache: Tensor, num_heads: int, deterministic: bool
) -> Prepared | _reference.Prepared:
    """``deterministic`` changes nothing: a sequence's result never depends on the rest of its batch."""
    if k_cache.dtype not in _DTYPES:
        return _reference.prepare(batch, block_table, k_cache, num_heads, deterministic)
    _, block_size, kv_heads, head_dim = k_cache.shape
    tensors = (batch.slots, batch.query_starts, batch.seq_lens, block_table)
    step = _Step(
        len(batch.host_query_lens),
        *(tensor.data_ptr() for tensor in tensors),
        block_table.stride(0),
        block_size,
        num_heads,
        kv_heads,
        head_dim,
        k_cache.dtype == torch.bfloat16,
    )
    return Prepared(step, ctypes.addressof(step), k_cache.dtype, tensors)


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, step: Any, scale: float, window: int) -> Tensor:
    if not isinstance(step, Prepared):
        return _reference.paged_attention(q, k_cache, v_cache, step, scale, window)
    tokens, heads, head_dim = q.shape
    if q.dtype is not step.dtype:
        raise TypeError(f"queries are {q.dtype}, the KV cache is {step.dtype}: they must be the same")
    token_stride, head_stride, stride = q.stride()
    if head_stride != head_dim or stride != 1:
        q = q.contiguous()
        token_stride = heads * head_dim
    out = q.new_empty(tokens, heads * head_dim)
    pointers = q.data_ptr(), token_stride, k_cache.data_ptr(), v_cache.data_ptr(), out.data_ptr()
    _attend()(step.address, *pointers, scale, window)
    return out


@cache
def _attend() -> Any:
    return bind("paged_attention", "ppnpppfn")
