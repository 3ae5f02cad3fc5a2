"""Batches over a shuffled paged cache, with the attention they must get written out one head at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from blade_llm.kernels.paged_attention import PLAIN, AttentionVariant, RaggedBatch

BLOCK = 16


@dataclass(frozen=True)
class AttentionCase:
    """One step of attention."""

    batch: RaggedBatch
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    table: torch.Tensor
    scale: float
    expected: torch.Tensor
    """[tokens, heads * head_dim] fp64, on the CPU."""


def attention_case(
    query_lens: list[int],
    seq_lens: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    *,
    poison: float = 0.0,
    window: int = 0,
    block_size: int = BLOCK,
    device: str = "cpu",
    variant: AttentionVariant = PLAIN,
    v_dim: int | None = None,
    latent: bool = False,
    branches: Mapping[int, Sequence[int]] | None = None,
) -> AttentionCase:
    """``poison``: what fills the cache slots beyond each sequence's end. A sequence of length 0 has an output of
    zeros. ``v_dim``: of values, that of keys by default; ``latent``: values are the first dimensions of keys.
    ``branches``: for sequences whose new tokens branch, by index, which new token each goes on from; the first has -1.
    """
    generator = torch.Generator().manual_seed(sum(seq_lens))
    scale = 0.17
    blocks_each = [-(-length // block_size) for length in seq_lens]
    order = torch.randperm(sum(blocks_each) + 3, generator=generator)
    k_cache, v_cache = (
        torch.randn(len(order), block_size, kv_heads, width, generator=generator).to(dtype)
        for width in (head_dim, v_dim or head_dim)
    )
    if latent:
        v_cache = k_cache[..., :v_dim]
    slots = torch.randperm(len(seq_lens) + 2, generator=generator)[: len(seq_lens)]
    table = torch.zeros(len(seq_lens) + 2, max(blocks_each) + 1, dtype=torch.int32)
    q = torch.randn(sum(query_lens), heads, head_dim, generator=generator).to(dtype)
    expected, used, token = [], 0, 0
    tree = torch.full((sum(query_lens), 3), -1)
    tree[:, 2] = 0
    for index, (slot, count, length, blocks) in enumerate(
        zip(slots.tolist(), query_lens, seq_lens, blocks_each, strict=True)
    ):
        seen = None
        if branches is not None and index in branches:
            seen, tree[token : token + count] = _branching(branches[index])
        table[slot, :blocks] = order[used : used + blocks].int()
        keys, values = (cache[table[slot, :blocks].long()].flatten(0, 1) for cache in (k_cache, v_cache))
        new = q[token : token + count]
        expected.append(_written_out(new, keys[:length], values[:length], scale, window, variant, seen))
        keys[length:], values[length:] = poison, poison
        for cache, filled in zip((k_cache, v_cache), (keys, values), strict=True):
            cache[table[slot, :blocks].long()] = filled.unflatten(0, (blocks, block_size))
        used, token = used + blocks, token + count
    batch = RaggedBatch.of(slots.to(device), query_lens, seq_lens)
    if branches is not None:
        batch = replace(batch, tree=tree.to(device))
    q, k_cache, v_cache, table = (tensor.to(device) for tensor in (q, k_cache, v_cache, table))
    v_cache = k_cache[..., :v_dim] if latent else v_cache
    return AttentionCase(batch, q, k_cache, v_cache, table, scale, torch.cat(expected))


def _branching(parents: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of the new tokens each sees, [new, new] bool, and their rows of :attr:`RaggedBatch.tree`."""
    count = len(parents)
    seen = torch.zeros(count, count, dtype=torch.bool)
    for index in range(count):
        at = index
        while at >= 0:
            seen[index, at] = True
            at = parents[at]
    rows = torch.zeros(count, 3, dtype=torch.int64)
    for bit in range(count):
        rows[:, bit // 64] |= seen[:, bit].long() << bit % 64
    rows[:, 2] = torch.arange(1, count + 1) - seen.sum(1)
    return seen, rows


def _written_out(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int,
    variant: AttentionVariant,
    seen: torch.Tensor | None = None,
) -> torch.Tensor:
    """``q``: [new, heads, dim]; ``keys``, ``values``: [length, kv_heads, dim]; ``seen``: of the new tokens, by each.
    fp64."""
    new, heads, _ = q.shape
    share, length = heads // keys.shape[1], len(keys)
    out = torch.zeros(new, heads, values.shape[2], dtype=torch.float64)
    if length == 0:
        return out.flatten(1)
    positions = torch.arange(length)
    at = torch.arange(length - new, length).unsqueeze(1)
    hidden = positions > at if variant.causal else torch.zeros(new, length, dtype=torch.bool)
    if seen is not None:  # positions of what came before are places; the new tokens are all within any window here
        at = length - new + seen.sum(1, keepdim=True) - 1
        hidden[:, length - new :] |= ~seen
    if window:
        hidden |= positions <= at - window
    if variant.chunk:
        hidden |= positions // variant.chunk != at // variant.chunk
    for head in range(heads):
        scores = q[:, head].double() @ keys[:, head // share].double().T * scale
        if variant.softcap:
            scores = variant.softcap * torch.tanh(scores / variant.softcap)
        if variant.slopes is not None:
            scores += float(variant.slopes[head]) * (positions - at)
        scores = scores.masked_fill(hidden, float("-inf"))
        if variant.sinks is not None:
            sink = variant.sinks[head].double().cpu().expand(new, 1)
            scores = torch.cat((scores, sink), 1)
        out[:, head] = scores.softmax(-1)[:, :length] @ values[:, head // share].double()
    return out.flatten(1)
