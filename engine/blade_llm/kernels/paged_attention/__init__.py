"""Causal attention of a ragged batch over a paged KV cache: prefill, chunked prefill, decode, and any mixture.

What a step's shape alone decides (grouping, masks, gather indices) is prepared once and shared by all layers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from torch import Tensor

from blade_llm.kernels.paged_attention import torch as _reference

PreparedAttention = _reference.Prepared
"""A step's shape as the implementation wants it; opaque to callers."""


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """Which sequences a step computes, their tokens packed one sequence after another."""

    rows: Tensor
    """[sequences] int64: each one's row of the block table."""
    query_starts: Tensor
    """[sequences + 1] int64: where each one's new tokens begin among the step's, and their number at the end."""
    seq_lens: Tensor
    """[sequences] int64: tokens of each sequence once the new ones are in the cache; the new ones are the last."""
    host_query_lens: list[int]
    """New tokens of each sequence, at least 1; known without asking the device."""
    host_seq_lens: list[int]
    """The same as ``seq_lens``."""

    @classmethod
    def of(cls, rows: Tensor, query_lens: list[int], seq_lens: list[int]) -> RaggedBatch:
        """Build one from what the host knows."""
        starts = rows.new_tensor([0, *itertools.accumulate(query_lens)])
        return cls(rows, starts, rows.new_tensor(seq_lens), query_lens, seq_lens)


def prepare(batch: RaggedBatch, block_table: Tensor, k_cache: Tensor, num_heads: int) -> PreparedAttention:
    """Prepare a step. ``block_table``: [rows, max_blocks] int32; ``k_cache``: any layer's, for its shape and type."""
    return _reference.prepare(batch.rows, batch.host_query_lens, batch.host_seq_lens, block_table, k_cache, num_heads)


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, step: PreparedAttention, scale: float) -> Tensor:
    """``softmax(scale * q k^T) v`` of each new token over its sequence up to itself.

    ``q``: [tokens, heads, head_dim]; ``heads`` is a multiple of ``kv_heads`` and consecutive query heads share one.
    ``k_cache``, ``v_cache``: [blocks, block_size, kv_heads, head_dim], the step's keys and values already written;
    unused slots must be finite. Returns [tokens, heads * head_dim].
    """
    return _reference.paged_attention(q, k_cache, v_cache, step, scale)
