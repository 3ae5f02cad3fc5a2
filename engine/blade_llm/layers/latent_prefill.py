"""Prefills of latent attention in the expanded form: keys and values of all heads are made of a sequence's latent
vectors, for this step alone, and attended to as in any other attention.

It multiplies vectors of 192 and 128 elements (of DeepSeek's sizes) where the absorbed form has 576 and 512, but it has
to expand the whole context, so it pays for chunks that are long beside what is before them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.paged_attention import PreparedAttention, RaggedBatch, paged_attention, prepare
from blade_llm.spec.latent_attention import EXPANDED_CONTEXT, LatentAttentionSpec


@dataclass(frozen=True, slots=True)
class ExpandedPrefill:
    """One sequence of a step."""

    tokens: slice
    """Of the step."""
    blocks: Tensor
    """[blocks] int64, of the cache."""
    length: int
    """Tokens of the sequence, the new ones included."""
    attention: PreparedAttention
    """Over its keys and values alone, as a cache of as many blocks."""


@dataclass(frozen=True, slots=True)
class ExpandedPrefills:
    """Those of a step, and what is left of it."""

    sequences: list[ExpandedPrefill]
    others: Tensor
    """[tokens] int64: the tokens of all other sequences, which may be none."""
    attention: PreparedAttention | None
    """Of the other sequences; None without any."""


def pays(spec: LatentAttentionSpec, count: int, length: int) -> bool:
    """Whether the expanded form multiplies less for the last ``count`` of ``length`` tokens."""
    expanded = spec.nope_dim + spec.value_dim
    more = (length - count) * spec.latent_dim * expanded
    less = count * length * (2 * spec.latent_dim - expanded)
    return 1 < count <= length <= EXPANDED_CONTEXT and more < less


def expanded_prefills(
    spec: LatentAttentionSpec, batch: RaggedBatch, block_table: Tensor, cache: Tensor
) -> ExpandedPrefills | None:
    """The prefills of a step that are better off expanded; None where none is.

    On a CPU: Triton's kernels are captured in graphs, where the host knows no lengths. ``block_table``, ``cache``: as
    :func:`~blade_llm.kernels.paged_attention.prepare` takes them. What is decided depends on the lengths of a chunk, so
    a deterministic step does without.
    """
    if cache.device.type != "cpu" or batch.decodes is not None:
        return None
    chosen: list[ExpandedPrefill] = []
    others: list[int] = []
    left: list[int] = []
    first = 0
    for index, (count, length) in enumerate(zip(batch.host_query_lens, batch.host_seq_lens, strict=True)):
        tokens = slice(first, first + count)
        first += count
        if not pays(spec, count, length):
            left.append(index)
            others.extend(range(tokens.start, tokens.stop))
            continue
        blocks = block_table[batch.slots[index], : -(-length // cache.shape[1])].long()
        alone = RaggedBatch.of(batch.slots.new_zeros(1), [count], [length])
        row = torch.arange(len(blocks), dtype=block_table.dtype).unsqueeze(0)
        scratch = cache.new_empty(0, cache.shape[1], spec.num_heads, spec.nope_dim + spec.rope_dim)
        chosen.append(ExpandedPrefill(tokens, blocks, length, prepare(alone, row, scratch, spec.num_heads)))
    if not chosen:
        return None
    attention = None
    if left:
        counts = [batch.host_query_lens[index] for index in left]
        lengths = [batch.host_seq_lens[index] for index in left]
        rest = RaggedBatch.of(batch.slots[torch.tensor(left)], counts, lengths)
        attention = prepare(rest, block_table, cache, spec.num_heads)
    return ExpandedPrefills(chosen, torch.tensor(others, dtype=torch.int64), attention)


def attend_expanded(
    spec: LatentAttentionSpec,
    prefill: ExpandedPrefill,
    queries: Tensor,
    cache: Tensor,
    key_up: Tensor,
    value_up: Tensor,
) -> Tensor:
    """[tokens, heads, value_dim] of ``queries`` ([tokens, heads, nope_dim + rope_dim], rotated).

    ``cache``: one layer's; ``key_up``: [heads, nope_dim, latent_dim]; ``value_up``: [heads, latent_dim, value_dim].
    """
    _, block_size, _, width = cache.shape
    rows = cache.index_select(0, prefill.blocks).view(-1, width)
    latents, heads = rows[:, : spec.latent_dim], spec.num_heads
    keys = rows.new_empty(len(rows), heads, spec.nope_dim + spec.rope_dim)
    keys[..., : spec.nope_dim] = F.linear(latents, key_up.flatten(0, 1)).view(len(rows), heads, -1)
    keys[..., spec.nope_dim :] = rows[:, spec.latent_dim :].unsqueeze(1)
    keys = keys.view(-1, block_size, heads, keys.shape[2])
    values = F.linear(latents, value_up.transpose(1, 2).flatten(0, 1)).view(-1, block_size, heads, spec.value_dim)
    attended = paged_attention(queries, keys, values, prefill.attention, spec.scale)
    return attended.view(len(queries), heads, spec.value_dim)
