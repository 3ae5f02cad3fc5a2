"""Quantised caches for tests of kernels."""

from __future__ import annotations

import torch
from engine_support.attention_cases import AttentionCase

from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.paged_attention import PLAIN, AttentionVariant
from blade_llm.kernels.paged_attention import torch as reference
from blade_llm.kv_quant import METHOD_NUMBERS, MIXED, KVCacheQuant, KVMethod, KVQuant

METHODS: tuple[KVMethod, ...] = tuple(METHOD_NUMBERS)
FORMS: tuple[KVCacheQuant, ...] = (*METHODS, *MIXED)
"""Every form of a quantised cache."""


def rows_of(form: KVCacheQuant, head_dim: int, dtype: torch.dtype, groups: int = 1) -> QuantizedRows:
    """Rows of ``head_dim`` elements."""
    return QuantizedRows(KVQuant.of(form, groups), head_dim, dtype)


def empty_caches(
    rows: QuantizedRows, blocks: int, kv_heads: int, device: torch.device | str = "cpu"
) -> list[torch.Tensor]:
    """One layer's keys and values, zero."""
    return [
        torch.zeros(blocks, 16, kv_heads, each.row_bytes, dtype=torch.uint8, device=device)
        for each in (rows, rows.values)
    ]


def packed(case: AttentionCase, rows: QuantizedRows) -> tuple[torch.Tensor, torch.Tensor]:
    """The caches of a case; what is beyond each sequence's end is NaN, with all bits set."""
    k_cache, v_cache = rows.quantize(case.k_cache), rows.values.quantize(case.v_cache)
    block_size = case.k_cache.shape[1]
    for slot, length in zip(case.batch.slots.tolist(), case.batch.host_seq_lens, strict=True):
        if length % block_size:
            block = int(case.table[slot, length // block_size])
            k_cache[block, length % block_size :] = v_cache[block, length % block_size :] = 255
    return k_cache, v_cache


def expected(
    case: AttentionCase, rows: QuantizedRows, window: int = 0, variant: AttentionVariant = PLAIN
) -> torch.Tensor:
    """Attention over what the rows hold, computed in fp32."""
    wide = QuantizedRows(rows.quant, rows.head_dim, torch.float32)
    k_cache = wide.dequantize(rows.quantize(case.k_cache))
    v_cache = wide.values.dequantize(rows.values.quantize(case.v_cache))
    step = reference.prepare(case.batch, case.table, k_cache, case.q.shape[1])
    return reference.paged_attention(case.q.float(), k_cache, v_cache, step, case.scale, window, variant)
