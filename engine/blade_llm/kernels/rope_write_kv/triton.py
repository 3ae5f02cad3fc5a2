"""Rotary embedding, per-head normalisation and KV write in Triton: each program takes some heads of one token and sends
every head where it belongs, queries to the result, keys and values to the cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.kv_rows_triton import pack_rows
from blade_llm.kv_quant import METHOD_NUMBERS

_ELEMENTS = 1024
"""Elements of a half head that a program takes together, about."""


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def _rope_write_kv_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    k_cache_ptr,
    v_cache_ptr,
    q_norm_ptr,
    k_norm_ptr,
    out_ptr,
    eps,
    NUM_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    NORM: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    columns = tl.arange(0, BLOCK_HALF)[None, :]
    inside = columns < HALF
    is_query = heads < NUM_HEADS
    is_value = (heads >= NUM_HEADS + KV_HEADS) & (heads < NUM_HEADS + 2 * KV_HEADS)
    is_key = (heads >= NUM_HEADS) & (heads < NUM_HEADS + KV_HEADS)

    source = qkv_ptr + token * (NUM_HEADS + 2 * KV_HEADS) * 2 * HALF + heads * 2 * HALF + columns
    exists = inside & (heads < NUM_HEADS + 2 * KV_HEADS)
    raw_first = tl.load(source, exists, 0.0)
    raw_second = tl.load(source + HALF, exists, 0.0)
    first = raw_first.to(tl.float32)
    second = raw_second.to(tl.float32)
    if NORM:
        mean = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF)
        scale = (1.0 / tl.sqrt(mean + eps))[:, None]
        q_first = tl.load(q_norm_ptr + columns, inside, 0.0).to(tl.float32)
        q_second = tl.load(q_norm_ptr + HALF + columns, inside, 0.0).to(tl.float32)
        k_first = tl.load(k_norm_ptr + columns, inside, 0.0).to(tl.float32)
        k_second = tl.load(k_norm_ptr + HALF + columns, inside, 0.0).to(tl.float32)
        # Rounded to the storage type before the weight, unless that has an offset, and after it, as in the reference.
        if UNIT_OFFSET:
            first = first * scale * (1.0 + tl.where(is_query, q_first, k_first))
            second = second * scale * (1.0 + tl.where(is_query, q_second, k_second))
        else:
            first = (first * scale).to(raw_first.dtype).to(tl.float32) * tl.where(is_query, q_first, k_first)
            second = (second * scale).to(raw_first.dtype).to(tl.float32) * tl.where(is_query, q_second, k_second)
        first = first.to(raw_first.dtype).to(tl.float32)
        second = second.to(raw_first.dtype).to(tl.float32)

    cos = tl.load(cos_ptr + token * HALF + columns, inside, 0.0)
    sin = tl.load(sin_ptr + token * HALF + columns, inside, 0.0)
    rotated_first = (first * cos - second * sin).to(raw_first.dtype)
    rotated_second = (second * cos + first * sin).to(raw_first.dtype)

    query = out_ptr + token * NUM_HEADS * 2 * HALF + heads * 2 * HALF + columns
    tl.store(query, rotated_first, inside & is_query)
    tl.store(query + HALF, rotated_second, inside & is_query)
    slot = tl.load(slots_ptr + token).to(tl.int64) * KV_HEADS * 2 * HALF
    key = k_cache_ptr + slot + (heads - NUM_HEADS) * 2 * HALF + columns
    tl.store(key, rotated_first, inside & is_key)
    tl.store(key + HALF, rotated_second, inside & is_key)
    value = v_cache_ptr + slot + (heads - NUM_HEADS - KV_HEADS) * 2 * HALF + columns
    tl.store(value, raw_first, inside & is_value)
    tl.store(value + HALF, raw_second, inside & is_value)


def rope_write_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    unit_offset: bool = False,
    rows: QuantizedRows | None = None,
) -> Tensor:
    tokens = qkv.shape[0]
    if rows is not None:
        return _pack(qkv, cos, sin, slot_mapping, (k_cache, v_cache), num_heads, q_norm, k_norm, eps, unit_offset, rows)
    _, _, kv_heads, head_dim = k_cache.shape
    out = torch.empty(tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if not tokens:
        return out
    half = triton.next_power_of_2(head_dim // 2)
    all_heads = num_heads + 2 * kv_heads
    heads = min(triton.next_power_of_2(all_heads), max(1, _ELEMENTS // half))
    _rope_write_kv_kernel[(tokens, triton.cdiv(all_heads, heads))](
        qkv,
        cos,
        sin,
        slot_mapping,
        k_cache,
        v_cache,
        qkv if q_norm is None else q_norm,
        qkv if k_norm is None else k_norm,
        out,
        eps,
        NUM_HEADS=num_heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        BLOCK_HEADS=heads,
        BLOCK_HALF=half,
        NORM=q_norm is not None,
        UNIT_OFFSET=unit_offset,
        num_warps=4,
    )
    return out


def _pack(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    caches: tuple[Tensor, Tensor],
    num_heads: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    unit_offset: bool,
    rows: QuantizedRows,
) -> Tensor:
    """The same with quantised caches: keys and values of these tokens are first written side by side, and packed."""
    tokens, kv_heads, dim = qkv.shape[0], caches[0].shape[2], rows.head_dim
    keys, values = (torch.empty(tokens, 1, kv_heads, dim, dtype=qkv.dtype, device=qkv.device) for _ in caches)
    in_order = torch.arange(tokens, device=qkv.device)
    q = rope_write_kv(qkv, cos, sin, in_order, keys, values, num_heads, q_norm, k_norm, eps, unit_offset)
    if not tokens:
        return q
    for new, cache, own in ((keys, caches[0], rows), (values, caches[1], rows.values)):
        pack_rows[(tokens, kv_heads)](
            new,
            cache,
            slot_mapping,
            METHOD=METHOD_NUMBERS[own.quant.method],
            GROUPS=own.quant.groups,
            DIM=dim,
            ROW_BYTES=own.row_bytes,
            KV_HEADS=kv_heads,
            BLOCK=max(16, triton.next_power_of_2(dim // 2)),
            num_warps=1,
            enable_fp_fusion=False,
        )
    return q
