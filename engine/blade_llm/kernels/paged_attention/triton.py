"""Paged attention for GPUs: one online-softmax kernel (FlashAttention, Dao et al., arXiv 2205.14135) for prefill,
chunked prefill and decode over a paged cache (Kwon et al., arXiv 2309.06180).

A program takes one KV head and ``BLOCK_Q`` tokens, and packs the query heads that share the KV head into the rows of
its tile, so keys and values are read once for all of them. Which sequence it works on it finds by binary search in
``query_starts``; nothing depends on lengths the host would have to wait for. The leading sequences with one new token
each go to decode programs, and where these are too few to fill the GPU, each is split along its context
(Flash-Decoding, Dao et al. 2023) and a second kernel combines the parts.

How many parts there are depends on the batch and the GPU alone, so a captured CUDA graph stays right while contexts
grow. In a graph that serves steps of many shapes the number of decodes is read on the device too: its grids hold the
most programs that any of them needs, and those beyond end at once.

A deterministic step has parts of a fixed size instead, its prefills add up the very same parts, and products
are not fused with sums: a token gets the same bits in any batch, computed alone, in a chunk, or in a whole prefill.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
from torch import Tensor

from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.paged_attention.batch import RaggedBatch
from blade_llm.kernels.paged_attention.triton_combine import combine
from blade_llm.kernels.paged_attention.triton_forms import Config, Widths, config_of, head_splits, widths_of
from blade_llm.kernels.paged_attention.triton_kernels import attend
from blade_llm.kernels.paged_attention.variant import PLAIN, AttentionVariant
from blade_llm.kernels.shared_memory import shared_memory as _shared_memory
from blade_llm.kv_quant import METHOD_NUMBERS

_LOG2_E = math.log2(math.e)
_PROGRAMS_PER_PROCESSOR = 2
"""Decode programs that a multiprocessor should get by dividing contexts: more only cost a longer sum of the parts."""
_DEEP_PROGRAMS = 3
"""Decode programs of the deep form that a multiprocessor holds at once, of heads of 128 dimensions."""
_MAX_SEGMENTS = 128
_MAX_FIXED_SEGMENTS = 32
"""Of a deterministic step: their buffers grow with the batch."""
_MIN_FIXED_SEGMENT = 512
_REDUCE_CHUNK, _NARROW_CHUNK = 16, 64
"""Parts that are added up at once; the larger number where a part's dimensions leave room for it in registers."""
_NARROW = 128
_MOST_SPLIT_QUERIES = 17
"""New tokens of a sequence whose context is divided: what a step verifies at most."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step's shape; all tensors are read by the kernels when they run."""

    slots: Tensor
    query_starts: Tensor
    seq_lens: Tensor
    block_table: Tensor
    sequences: int
    decodes: int
    """Leading sequences with one new token each; their most where ``device_decodes`` has the number."""
    segments: int
    """Parts of a decode's context; their most with ``device_decodes``."""
    segment: int
    """Tokens of a part; 0 where the context is divided by ``segments``."""
    device_decodes: Tensor | None = None
    part_programs: int = 0
    """With ``device_decodes``: parts of all decodes for which there is room."""
    tree: Tensor | None = None
    """See :attr:`RaggedBatch.tree`."""
    shorts: int = 0
    """Sequences behind the decodes, with few new tokens each, whose contexts are divided; their most where
    ``device_shorts`` has the number."""
    short_tokens: int = 0
    """All of these; their most with ``device_shorts``."""
    short_segments: int = 1
    """Parts of each one's context; their most with ``device_shorts``."""
    short_programs: int = 0
    """Parts of all of their contexts; their most with ``device_shorts``."""
    device_shorts: Tensor | None = None
    rows: QuantizedRows | None = None
    unpacked: Tensor | None = None
    """With ``rows``: what the caches would be in shape and type if they were not quantised."""


def prepare(
    batch: RaggedBatch,
    block_table: Tensor,
    k_cache: Tensor,
    num_heads: int,
    deterministic: bool = False,
    rows: QuantizedRows | None = None,
) -> Prepared:
    """See :func:`blade_llm.kernels.paged_attention.prepare`; launches nothing."""
    if rows is not None:
        unpacked = rows.unpacked_like(k_cache)
        return replace(prepare(batch, block_table, unpacked, num_heads, deterministic), rows=rows, unpacked=unpacked)
    counts = batch.host_query_lens
    sequences = len(batch.slots)
    captured = batch.decodes is not None
    decodes = sequences if captured else next((index for index, count in enumerate(counts) if count != 1), len(counts))
    segment = 0
    if deterministic:
        longest = block_table.shape[1] * k_cache.shape[1]
        segment = max(_MIN_FIXED_SEGMENT, triton.next_power_of_2(-(-longest // _MAX_FIXED_SEGMENTS)))
        segments = -(-longest // segment)
    else:
        least = 1 if captured else decodes
        segments = segments_of(least, _programs_per_token(k_cache, num_heads), _processors(k_cache.device))
    prepared = Prepared(
        batch.slots, batch.query_starts, batch.seq_lens, block_table, sequences, decodes, segments, segment,
        batch.decodes, _part_programs(decodes, segments, k_cache, num_heads, segment) if captured else 0, batch.tree,
    )  # fmt: skip
    if deterministic:
        return prepared  # parts of a fixed size are what prefills have, too
    return _with_shorts(prepared, batch, k_cache, num_heads)


def _with_shorts(step: Prepared, batch: RaggedBatch, k_cache: Tensor, heads: int) -> Prepared:
    """The same with the sequences that have few new tokens each, where dividing their contexts fills the GPU."""
    if batch.shorts is None and not batch.divided:
        return step
    most, programs = most_split_queries(k_cache, heads), _programs_per_token(k_cache, heads)
    processors = _processors(k_cache.device)
    if batch.decodes is not None:
        segments, shorts = segments_of(1, programs, processors), step.sequences
        if segments == 1:
            return step
        return replace(
            step,
            shorts=shorts,
            short_tokens=shorts * most,
            short_segments=segments,
            short_programs=max(shorts, min(shorts * segments, _programs(k_cache, heads))),
            device_shorts=batch.shorts,
        )
    behind = batch.host_query_lens[step.decodes :]
    shorts = next((index for index, count in enumerate(behind) if not 1 < count <= most), len(behind))
    segments = segments_of(shorts, programs, processors)
    if not shorts or segments == 1:
        return step
    tokens = sum(behind[:shorts])
    return replace(step, shorts=shorts, short_tokens=tokens, short_segments=segments, short_programs=shorts * segments)


def most_split_queries(k_cache: Tensor, heads: int) -> int:
    """See :func:`blade_llm.kernels.paged_attention.most_split_queries`: those that one program holds."""
    _, _, kv_heads, head_dim = k_cache.shape
    config = config_of(head_dim, heads // kv_heads, k_cache.element_size(), _shared_memory(k_cache.device), "small")
    return min(_MOST_SPLIT_QUERIES, max(1, config.rows * _programs_per_token(k_cache, heads) // heads))


def _part_programs(decodes: int, segments: int, k_cache: Tensor, heads: int, segment: int) -> int:
    """The most parts that up to ``decodes`` contexts are divided into, all together."""
    if segment:
        return decodes * segments
    return max(decodes, min(decodes * segments, _programs(k_cache, heads)))


def _programs_per_token(k_cache: Tensor, heads: int) -> int:
    """Programs of a decode that is not split along its context."""
    kv_heads, head_dim = k_cache.shape[2:]
    return kv_heads * head_splits(head_dim, heads // kv_heads)


def _programs(k_cache: Tensor, heads: int) -> int:
    """Parts of decodes that fill the GPU."""
    return _PROGRAMS_PER_PROCESSOR * _processors(k_cache.device) // _programs_per_token(k_cache, heads)


def segments_of(decodes: int, kv_heads: int, processors: int) -> int:
    """Into how many parts each of ``decodes`` contexts is divided, a power of two; ``kv_heads``: programs of each
    undivided one."""
    programs = triton.next_power_of_2(max(1, decodes)) * kv_heads
    wanted = min(_MAX_SEGMENTS, max(1, _PROGRAMS_PER_PROCESSOR * processors // programs))
    return 1 << (wanted.bit_length() - 1)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's part of a call."""

    k_cache: Tensor
    """By its shape, as ``v_cache``; the memory is ``stored``."""
    v_cache: Tensor
    stored: tuple[Tensor, Tensor]
    rows: QuantizedRows | None
    widths: Widths
    scale: float
    window: int
    variant: AttentionVariant


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    step: Prepared,
    scale: float,
    window: int = 0,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    """See :func:`blade_llm.kernels.paged_attention.paged_attention`."""
    stored = k_cache, v_cache
    if step.unpacked is not None:
        k_cache = v_cache = step.unpacked
    tokens, heads, head_dim = q.shape
    v_dim = v_cache.shape[3]
    variant.check(heads, window, step.tree is not None)
    layer = _Layer(k_cache, v_cache, stored, step.rows, widths_of(k_cache, v_cache), scale, window, variant)
    if q.stride(2) != 1 or q.stride(1) != head_dim:
        q = q.contiguous()
    # In a graph of mixed steps some tokens are padding, for which no program writes.
    empty = torch.zeros if step.device_decodes is not None else torch.empty
    out = empty(tokens, heads * v_dim, dtype=q.dtype, device=q.device)
    if step.decodes:
        if step.segments > 1:
            programs = step.part_programs or step.decodes * step.segments
            parts = torch.empty(programs, heads, v_dim, dtype=torch.float32, device=q.device)
            weights = torch.empty(programs, heads, 2, dtype=torch.float32, device=q.device)
            _launch(out, parts, weights, q, layer, step, decode=True)
            _launch_reduce(out, parts, weights, layer, step)
        else:
            _launch(out, out, out, q, layer, step, decode=True)
    if step.shorts:
        most = step.short_programs * most_split_queries(k_cache, heads)
        parts = torch.empty(most, heads, v_dim, dtype=torch.float32, device=q.device)
        weights = torch.empty(most, heads, 2, dtype=torch.float32, device=q.device)
        _launch(out, parts, weights, q, layer, step, decode=False, short=True)
        _launch_reduce(out, parts, weights, layer, step, short=True)
    if step.decodes + step.shorts < step.sequences or step.device_decodes is not None:
        _launch(out, out, out, q, layer, step, decode=False)
    return out


def warm(
    k_cache: Tensor,
    block_table: Tensor,
    num_heads: int,
    windows: tuple[int, ...] = (0,),
    deterministic: bool = False,
    variant: AttentionVariant = PLAIN,
    v_cache: Tensor | None = None,
    drafts: bool = False,
    branches: bool = False,
    rows: QuantizedRows | None = None,
) -> None:
    """See :func:`blade_llm.kernels.paged_attention.warm`."""
    values = k_cache if v_cache is None else v_cache
    shape = k_cache if rows is None else rows.unpacked_like(k_cache)
    many = _processors(k_cache.device) * config_of(shape.shape[3], 1, 2, 1 << 20, "prefill").rows // num_heads + 1
    decodes = _DEEP_PROGRAMS * _processors(k_cache.device) + 1
    for window in {min(window, 1) for window in windows}:
        # Decodes that the GPU holds at once, more, a prefill that does not fill it, and one that does.
        for counts in ([1], [1] * decodes, [2], [2] * many):
            slots = torch.zeros(len(counts), dtype=torch.int64, device=k_cache.device)
            q = torch.zeros(sum(counts), num_heads, shape.shape[3], dtype=shape.dtype, device=k_cache.device)
            batch = RaggedBatch.of(slots, counts, counts)
            step = prepare(batch, block_table, k_cache, num_heads, deterministic, rows)
            split = (1, 2) if counts == [1] and not deterministic else (step.segments,)
            for segments in split:
                paged_attention(q, k_cache, values, replace(step, segments=segments), 1.0, window, variant)
            if max(counts) == 1 or not drafts:
                continue
            divided = prepare(replace(batch, divided=True), block_table, k_cache, num_heads, deterministic, rows)
            tree = torch.full((len(q), 3), -1, dtype=torch.int64, device=k_cache.device)
            for each in (step, divided):
                for branching in (None, tree) if branches else (None,):
                    paged_attention(q, k_cache, values, replace(each, tree=branching), 1.0, window, variant)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _config(k_cache: Tensor, heads: int, step: Prepared, tokens: int, decode: bool, v_dim: int | None = None) -> Config:
    """The form for ``tokens`` of ``step``, its decodes or the rest. ``v_dim``: where it is not that of keys, 0 where
    values are part of keys."""
    _, _, kv_heads, head_dim = k_cache.shape
    shape = head_dim, heads // kv_heads, k_cache.element_size(), _shared_memory(k_cache.device)
    if decode and not step.segment:
        programs = (step.part_programs or step.decodes * step.segments) * _programs_per_token(k_cache, heads)
        deep = programs <= _DEEP_PROGRAMS * _processors(k_cache.device)
        return config_of(*shape, "decode" if deep else "many_decodes", v_dim)
    large = config_of(*shape, "prefill", v_dim)
    fills = tokens * heads // large.rows >= _processors(k_cache.device)
    return large if fills and not step.segment else config_of(*shape, "small", v_dim)


def _launch(
    out: Tensor,
    parts: Tensor,
    weights: Tensor,
    q: Tensor,
    layer: _Layer,
    step: Prepared,
    decode: bool,
    short: bool = False,
) -> None:
    tokens, heads, head_dim = q.shape
    k_cache, widths, variant = layer.k_cache, layer.widths, layer.variant
    kv_heads = _programs_per_token(k_cache, heads)
    captured = step.device_decodes is not None
    first = 0 if decode or captured else step.decodes if short else step.decodes + step.shorts
    sequences = step.decodes if decode else step.shorts if short else step.sequences - first
    left = tokens if captured else tokens - step.decodes - (0 if short else step.short_tokens)
    config = _config(k_cache, heads, step, 0 if short else left, decode, widths.v_loaded)
    segments = step.segments if decode else step.short_segments if short else 1
    block_q = config.rows // (heads // kv_heads)
    blocks = sequences if decode or short else left // block_q + sequences
    grid = (blocks * kv_heads, segments)
    if captured and (decode or short):  # how many parts each has is not known here
        grid = ((step.short_programs if short else step.part_programs) * kv_heads, 1)
    attend[grid](
        out,
        parts,
        weights,
        q,
        *layer.stored,
        step.block_table,
        step.slots,
        step.query_starts,
        step.seq_lens,
        step.device_decodes if captured else step.seq_lens,
        step.seq_lens if step.device_shorts is None else step.device_shorts,
        step.seq_lens if variant.slopes is None else variant.slopes,
        step.seq_lens if variant.sinks is None else variant.sinks,
        step.seq_lens if step.tree is None else step.tree,
        q.stride(0),
        step.block_table.stride(0),
        first,
        sequences,
        segments,
        _programs(k_cache, heads),
        layer.window,
        layer.scale * (2.0 * _LOG2_E / variant.softcap if variant.softcap else _LOG2_E),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_SPLITS=kv_heads // k_cache.shape[2],
        HEAD_DIM=head_dim,
        PADDED_DIM=widths.padded,
        REST_DIM=widths.rest,
        METHOD=0 if layer.rows is None else METHOD_NUMBERS[layer.rows.quant.method],
        V_METHOD=0 if layer.rows is None else METHOD_NUMBERS[layer.rows.quant.values.method],
        GROUP_SIZE=0 if layer.rows is None else head_dim // layer.rows.quant.groups,
        K_HEAD_STRIDE=layer.stored[0].stride(2),
        V_SLOT_STRIDE=layer.stored[1].stride(1),
        V_HEAD_STRIDE=layer.stored[1].stride(2),
        V_DIM=widths.v_dim,
        V_PADDED=widths.v_padded,
        SHARED_KV=widths.shared,
        BLOCK_SIZE=k_cache.shape[1],
        BLOCK_M=config.rows,
        TILE=config.tile,
        SEGMENT_TILES=step.segment // config.tile,
        SOFTCAP=variant.softcap * _LOG2_E,
        LOCAL=variant.chunk,
        ALIBI=variant.slopes is not None,
        SINKS=variant.sinks is not None,
        CAUSAL=variant.causal,
        TREE=step.tree is not None and not decode,
        DECODE=decode,
        SHORT=short,
        SHORTS=step.device_shorts is not None,
        SPLIT=segments > 1,
        CAPTURED=captured,
        WINDOWED=layer.window > 0,
        num_warps=config.warps,
        num_stages=config.stages,
        enable_fp_fusion=not step.segment,
    )


def _launch_reduce(
    out: Tensor, parts: Tensor, weights: Tensor, layer: _Layer, step: Prepared, short: bool = False
) -> None:
    heads = parts.shape[1]
    k_cache, widths, variant = layer.k_cache, layer.widths, layer.variant
    captured = step.device_decodes is not None
    tile = _config(k_cache, heads, step, 0 if short else step.decodes, not short, widths.v_loaded).tile
    chunk = _NARROW_CHUNK if widths.v_padded <= _NARROW else _REDUCE_CHUNK
    combine[((step.short_tokens if short else step.decodes) * heads,)](
        out,
        parts,
        weights,
        step.seq_lens,
        step.query_starts,
        step.device_decodes if captured else step.seq_lens,
        step.seq_lens if step.device_shorts is None else step.device_shorts,
        step.seq_lens if variant.sinks is None else variant.sinks,
        step.decodes if short else 0,
        step.short_segments if short else step.segments,
        _programs(k_cache, heads),
        layer.window,
        HEADS=heads,
        V_DIM=widths.v_dim,
        V_PADDED=widths.v_padded,
        TILE=tile,
        SEGMENT_TILES=step.segment // tile,
        # One at a time adds up in the order a deterministic prefill does.
        CHUNK=1 if step.segment else chunk,
        LOCAL=variant.chunk,
        SINKS=variant.sinks is not None,
        SHORT=short,
        CAPTURED=captured,
        WINDOWED=layer.window > 0,
        num_warps=2,
        enable_fp_fusion=not step.segment,
    )
