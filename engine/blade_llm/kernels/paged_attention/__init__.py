"""Causal attention of a ragged batch over a paged KV cache: prefill, chunked prefill, decode, and any mixture.

What a step's shape alone decides (grouping, masks, gather indices) is prepared once and shared by all layers.
"""

from dataclasses import dataclass

from torch import Tensor

from blade_llm.kernels.paged_attention import torch as _torch

PreparedAttention = _torch.Prepared
"""A step's shape as the implementation wants it; opaque to callers."""


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """Which sequences a step computes, their tokens packed one sequence after another."""

    rows: Tensor
    """[sequences] int64: each one's row of the block table."""
    query_lens: list[int]
    """New tokens of each sequence, at least 1."""
    seq_lens: list[int]
    """Tokens of each sequence once the new ones are in the cache; the new ones are the last."""


def prepare(batch: RaggedBatch, block_table: Tensor, k_cache: Tensor, num_heads: int) -> PreparedAttention:
    """Prepare a step. ``block_table``: [rows, max_blocks] int32; ``k_cache``: any layer's, for its shape and type."""
    return _torch.prepare(batch.rows, batch.query_lens, batch.seq_lens, block_table, k_cache, num_heads)


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, step: PreparedAttention, scale: float) -> Tensor:
    """``softmax(scale * q k^T) v`` of each new token over its sequence up to itself.

    ``q``: [tokens, heads, head_dim]; ``heads`` is a multiple of ``kv_heads`` and consecutive query heads share one.
    ``k_cache``, ``v_cache``: [blocks, block_size, kv_heads, head_dim], the step's keys and values already written;
    unused slots must be finite. Returns [tokens, heads * head_dim].
    """
    return _torch.paged_attention(q, k_cache, v_cache, step, scale)
