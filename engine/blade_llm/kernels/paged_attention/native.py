"""Paged attention on CPU in C++ (``native.cpp``), straight from the paged cache: nothing is gathered or copied."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.native.functions import bind
from blade_llm.kernels.native.kv_rows import CacheRowsStruct, struct_of
from blade_llm.kernels.paged_attention import torch as _reference
from blade_llm.kernels.paged_attention.batch import RaggedBatch
from blade_llm.kernels.paged_attention.variant import PLAIN, AttentionVariant

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
        ("fixed_order", _SIZE),
        ("tree", _POINTER),
        ("rows", CacheRowsStruct),
    )


class _Form(ctypes.Structure):
    """``Form`` in attend.h."""

    _fields_ = (
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        *((name, _SIZE) for name in ("window", "chunk", "bidirectional")),
        *((name, _POINTER) for name in ("slopes", "sinks")),
        *((name, _SIZE) for name in ("v_dim", "v_slot_size", "v_head_size")),
    )


@dataclass(frozen=True, slots=True)
class Form:
    """One layer's attention as the C++ code reads it, and the tensors it points to."""

    form: _Form
    address: int
    tensors: tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step's shape as the C++ code reads it, and the tensors it points to."""

    step: _Step
    address: int
    dtype: torch.dtype
    """Of queries."""
    tensors: tuple[Tensor | None, ...]
    rows: QuantizedRows | None = None


def prepare(
    batch: RaggedBatch,
    block_table: Tensor,
    k_cache: Tensor,
    num_heads: int,
    deterministic: bool,
    rows: QuantizedRows | None = None,
) -> Prepared | _reference.Prepared:
    """A sequence's result never depends on the rest of its batch. ``deterministic``: up to 512 keys, neither on how
    many of its tokens are computed at once."""
    dtype = k_cache.dtype if rows is None else rows.dtype
    if dtype not in _DTYPES:
        return _reference.prepare(batch, block_table, k_cache, num_heads, deterministic, rows)
    _, block_size, kv_heads, width = k_cache.shape
    tensors = (batch.slots, batch.query_starts, batch.seq_lens, block_table)
    step = _Step(
        len(batch.host_query_lens),
        *(tensor.data_ptr() for tensor in tensors),
        block_table.stride(0),
        block_size,
        num_heads,
        kv_heads,
        width if rows is None else rows.head_dim,
        dtype == torch.bfloat16,
        deterministic,
        None if batch.tree is None else batch.tree.data_ptr(),
        struct_of(rows),
    )
    return Prepared(step, ctypes.addressof(step), dtype, (*tensors, batch.tree), rows)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    step: Any,
    scale: float,
    window: int,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    if not isinstance(step, Prepared):
        return _reference.paged_attention(q, k_cache, v_cache, step, scale, window, variant)
    tokens, heads, head_dim = q.shape
    if q.dtype is not step.dtype:
        raise TypeError(f"queries are {q.dtype}, the KV cache is {step.dtype}: they must be the same")
    token_stride, head_stride, stride = q.stride()
    if head_stride != head_dim or stride != 1:
        q = q.contiguous()
        token_stride = heads * head_dim
    v_dim = v_cache.size(3) if step.rows is None else head_dim
    if step.tensors[-1] is not None:
        variant.check(heads, window, branches=True)
    form = form_of(scale, window, variant, heads, v_dim, v_cache.stride())
    out = q.new_empty(tokens, heads * v_dim)
    pointers = q.data_ptr(), token_stride, k_cache.data_ptr(), v_cache.data_ptr(), out.data_ptr()
    _attend()(step.address, *pointers, form.address)
    return out


@lru_cache(maxsize=1024)
def form_of(
    scale: float, window: int, variant: AttentionVariant, heads: int, v_dim: int, v_strides: tuple[int, ...]
) -> Form:
    """A layer's attention; ``v_dim``, ``v_strides``: of its cache of values."""
    variant.check(heads, window)
    tensors = tuple(terms if terms is None else terms.contiguous() for terms in (variant.slopes, variant.sinks))
    pointers = (terms if terms is None else terms.data_ptr() for terms in tensors)
    sizes = v_dim, v_strides[1], v_strides[2]
    form = _Form(scale, variant.softcap, window, variant.chunk, not variant.causal, *pointers, *sizes)
    return Form(form, ctypes.addressof(form), tensors)


@cache
def _attend() -> Any:
    return bind("paged_attention", "ppnpppp")
