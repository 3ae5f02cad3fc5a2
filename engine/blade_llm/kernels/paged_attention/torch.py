"""Paged attention in plain torch: gather the blocks, then ``scaled_dot_product_attention``.

Query heads that share a key head never repeat it: in a decode they become that head's query positions, in a prefill a
batch dimension of stride zero. Decodes are batched in groups of similar length, because each group is padded to its
longest; prefills go one sequence at a time, in chunks of queries that attend only to the keys before them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.paged_attention.batch import RaggedBatch
from blade_llm.kernels.paged_attention.scores import attend, first_key
from blade_llm.kernels.paged_attention.variant import PLAIN, AttentionVariant

QUERY_CHUNK = 256
"""Queries a prefill handles at once; half of the work above the diagonal of each chunk is wasted."""
_GROUP_RATIO = 0.7
_GROUP_SAVING = 256
"""A new decode group starts where lengths fall below this ratio and splitting saves at least so many padded tokens
(one group costs about as much as attending to a few hundred tokens)."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one new token each."""

    tokens: Tensor | None
    """[batch] int64 into the step's tokens; None when the group is the whole step."""
    batch: int
    blocks: Tensor
    """[batch * blocks each] int64."""
    lengths: list[int]
    mask: Tensor | None
    """[batch, 1, 1, longest] additive; None when all are equally long."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """One sequence with several new tokens."""

    first: int
    """Its first token within the step."""
    count: int
    blocks: Tensor
    """[blocks] int64."""
    length: int
    tree: Tensor | None = None
    """[count, 3] int64: see :attr:`RaggedBatch.tree`; None: its tokens do not branch."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step's shape."""

    decodes: list[DecodeGroup]
    prefills: list[Prefill]
    causal: Tensor | None
    """[QUERY_CHUNK, longest] additive; its last columns are the causal triangle, so every chunk's mask is a slice of it
    that ends in the lower right corner."""
    deterministic: bool
    rows: QuantizedRows | None = None
    """How the caches' rows are packed; None: they are not quantised."""


def prepare(
    batch: RaggedBatch,
    block_table: Tensor,
    k_cache: Tensor,
    num_heads: int,
    deterministic: bool = False,
    rows: QuantizedRows | None = None,
) -> Prepared:
    """``deterministic``: every token is a decode and a group of its own. Slow, but a sum that is cut up otherwise, by
    padding or by chunks, rounds otherwise."""
    slots, block_size = batch.slots, k_cache.shape[1]
    dtype = k_cache.dtype if rows is None else rows.dtype
    prefills: list[Prefill] = []
    singles: list[tuple[int, int, int]] = []  # (length, sequence, token)
    token = 0
    for index, (count, length) in enumerate(zip(batch.host_query_lens, batch.host_seq_lens, strict=True)):
        tree = None if batch.tree is None or batch.tree[token, 0] == -1 else batch.tree[token : token + count]
        if count == 1 or (deterministic and tree is None):
            singles += [(length - count + 1 + offset, index, token + offset) for offset in range(count)]
        else:
            blocks = block_table[slots[index], : -(-length // block_size)].long()
            prefills.append(Prefill(token, count, blocks, length, tree))
        token += count
    lengthwise = [[single] for single in singles] if deterministic else _by_length(singles)
    whole = token == len(batch.host_query_lens)
    groups = [_decode_group(group, whole, slots, block_table, block_size, dtype) for group in lengthwise]
    longest = max((prefill.length for prefill in prefills if prefill.tree is None), default=0)
    mask = _causal_mask(longest, dtype, k_cache.device) if longest else None
    return Prepared(groups, prefills, mask, deterministic, rows)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    step: Prepared,
    scale: float,
    window: int = 0,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    tokens, heads, _ = q.shape
    variant.check(heads, window, any(prefill.tree is not None for prefill in step.prefills))
    if step.deterministic and not variant.causal:
        raise ValueError("bidirectional attention has no deterministic form in torch; leave --deterministic out")
    rows = step.rows
    v_dim = v_cache.shape[3] if rows is None else rows.head_dim
    if not step.prefills and len(step.decodes) == 1 and step.decodes[0].tokens is None:
        attended = _decode(q, k_cache, v_cache, step.decodes[0], scale, window, variant, rows)
        return attended.reshape(tokens, heads * v_dim)
    out = torch.empty(tokens, heads, v_dim, dtype=q.dtype, device=q.device)
    for group in step.decodes:
        assert group.tokens is not None
        attended = _decode(q.index_select(0, group.tokens), k_cache, v_cache, group, scale, window, variant, rows)
        out.index_copy_(0, group.tokens, attended.reshape(group.batch, heads, v_dim))
    for prefill in step.prefills:
        new = slice(prefill.first, prefill.first + prefill.count)
        _prefill(q[new], k_cache, v_cache, prefill, step.causal, scale, window, variant, out[new], rows)
    return out.view(tokens, heads * v_dim)


def _by_length(singles: list[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Split decodes into groups of similar length, longest first."""
    groups: list[list[tuple[int, int, int]]] = []
    ordered = sorted(singles, key=lambda single: -single[0])
    for position, single in enumerate(ordered):
        longest = groups[-1][0][0] if groups else 0
        saving = (longest - single[0]) * (len(ordered) - position)
        if not groups or (single[0] <= _GROUP_RATIO * longest and saving >= _GROUP_SAVING):
            groups.append([])
        groups[-1].append(single)
    return groups


def _decode_group(
    group: list[tuple[int, int, int]],
    whole_step: bool,
    slots: Tensor,
    block_table: Tensor,
    block_size: int,
    dtype: torch.dtype,
) -> DecodeGroup:
    longest = group[0][0]
    if whole_step and len(group) == slots.shape[0]:
        group = sorted(group, key=lambda single: single[2])
        tokens, members = None, slots
    else:
        index = torch.tensor([(single[1], single[2]) for single in group], device=slots.device)
        tokens, members = index[:, 1].contiguous(), slots[index[:, 0]]
    lengths = [single[0] for single in group]
    blocks = block_table[members, : -(-longest // block_size)].long().view(-1)
    mask = _decode_mask(lengths, 0, 0, 0, dtype, slots.device) if min(lengths) < longest else None
    return DecodeGroup(tokens, len(group), blocks, lengths, mask)


def _decode_mask(
    lengths: list[int], first: int, window: int, chunk: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """[batch, 1, 1, longest - first] additive: hides what is beyond each length and before each window or chunk."""
    positions = torch.arange(first, max(lengths), device=device)
    starts = [first_key(length - 1, window, chunk) for length in lengths]
    starts_and_ends = torch.tensor([starts, lengths], device=device).unsqueeze(2)
    hidden = (positions < starts_and_ends[0]) | (positions >= starts_and_ends[1])
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return mask.masked_fill_(hidden, float("-inf")).view(len(lengths), 1, 1, -1)


def _causal_mask(longest: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    width = max(longest, QUERY_CHUNK)
    mask = torch.zeros(QUERY_CHUNK, width, dtype=dtype, device=device)
    corner = torch.full((QUERY_CHUNK, QUERY_CHUNK), float("-inf"), dtype=dtype, device=device)
    mask[:, width - QUERY_CHUNK :] = corner.triu(1)
    return mask


def _decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    group: DecodeGroup,
    scale: float,
    window: int,
    variant: AttentionVariant,
    rows: QuantizedRows | None,
) -> Tensor:
    """[batch, heads, head_dim] in, [batch, kv_heads, heads per kv head, v_dim] out."""
    block_size, kv_heads = k_cache.shape[1:3]
    head_dim = q.shape[2]
    longest = max(group.lengths)
    blocks, first, mask = group.blocks, 0, group.mask
    if first_key(longest - 1, window, variant.chunk):
        # Blocks that are before every sequence's window are not even gathered.
        skipped = min(first_key(max(0, length - 1), window, variant.chunk) for length in group.lengths) // block_size
        blocks, first = blocks.view(group.batch, -1)[:, skipped:].reshape(-1), skipped * block_size
        mask = _decode_mask(group.lengths, first, window, variant.chunk, q.dtype, q.device)
    keys, values = (
        each.view(group.batch, -1, *each.shape[2:])[:, : longest - first].transpose(1, 2)
        for each in _gather(k_cache, v_cache, blocks, rows)
    )
    if mask is not None:  # what is hidden may be NaN, of another sequence: weighed by 0 it would be NaN all the same
        hidden = mask.isneginf().transpose(2, 3)
        keys, values = keys.masked_fill(hidden, 0.0), values.masked_fill(hidden, 0.0)
    folded = q.reshape(group.batch, kv_heads, -1, head_dim)
    distances = None
    if variant.slopes is not None:
        ends = torch.tensor(group.lengths, device=q.device).view(-1, 1, 1, 1)
        distances = torch.arange(first, longest, device=q.device) - (ends - 1)
    return attend(folded, keys, values, mask, scale, variant, distances, heads_last=True)


def _prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    prefill: Prefill,
    causal: Tensor | None,
    scale: float,
    window: int,
    variant: AttentionVariant,
    out: Tensor,
    rows: QuantizedRows | None,
) -> None:
    """[count, heads, head_dim] in, [count, heads, v_dim] into ``out``."""
    kv_heads, head_dim = k_cache.shape[2], q.shape[2]
    share = q.shape[1] // kv_heads
    # [share, kv_heads, length, head_dim], the first dimension of stride zero
    keys, values = (
        each.flatten(0, 1).transpose(0, 1).expand(share, -1, -1, -1)
        for each in _gather(k_cache, v_cache, prefill.blocks, rows)
    )
    queries = q.view(-1, kv_heads, share, head_dim).permute(2, 1, 0, 3)  # [share, kv_heads, count, head_dim]
    result = out.view(-1, kv_heads, share, out.shape[2]).permute(2, 1, 0, 3)
    start = prefill.length - prefill.count
    if prefill.tree is not None:
        seen = slice(prefill.length)
        branches = _tree_mask(prefill, prefill.tree, window, q.dtype)
        result.copy_(attend(queries, keys[:, :, seen], values[:, :, seen], branches, scale, variant, None))
        return
    assert causal is not None
    for begin in range(0, prefill.count, QUERY_CHUNK):
        end = min(begin + QUERY_CHUNK, prefill.count)
        first = first_key(start + begin, window, variant.chunk)
        stop = start + end if variant.causal else prefill.length
        mask = causal[QUERY_CHUNK - (end - begin) :, causal.shape[1] - (stop - first) :] if variant.causal else None
        if mask is not None and mask.is_cuda:  # torch's kernels there want it at a multiple of 16 bytes
            mask = mask.clone(memory_format=torch.contiguous_format)
        at = torch.arange(start + begin, start + end, device=q.device).unsqueeze(1)
        positions = torch.arange(first, stop, device=q.device)
        if mask is not None and (window or variant.chunk):
            mask = mask.masked_fill(positions < first_key(at, window, variant.chunk), float("-inf"))
        result[:, :, begin:end] = attend(
            queries[:, :, begin:end],
            keys[:, :, first:stop],
            values[:, :, first:stop],
            mask,
            scale,
            variant,
            positions - at if variant.slopes is not None else None,
        )


def _gather(k_cache: Tensor, v_cache: Tensor, blocks: Tensor, rows: QuantizedRows | None) -> tuple[Tensor, Tensor]:
    """[blocks, block_size, kv_heads, width] of both caches, no longer quantised."""
    keys, values = k_cache.index_select(0, blocks), v_cache.index_select(0, blocks)
    return (keys, values) if rows is None else (rows.dequantize(keys), rows.values.dequantize(values))


def _tree_mask(prefill: Prefill, tree: Tensor, window: int, dtype: torch.dtype) -> Tensor:
    """[count, length] additive: of what came before, each token sees all that its window has, of the new tokens those
    that it goes on from."""
    start = prefill.length - prefill.count
    new = torch.arange(prefill.count, device=tree.device)
    seen = tree[:, new // 64] >> new % 64 & 1
    mask = torch.zeros(prefill.count, prefill.length, dtype=dtype, device=tree.device)
    mask[:, start:].masked_fill_(seen == 0, float("-inf"))
    if window:
        places = torch.arange(prefill.length, device=tree.device)
        at = (start + new - tree[:, 2]).unsqueeze(1)
        mask.masked_fill_(places < first_key(at, window, 0), float("-inf"))
    return mask
