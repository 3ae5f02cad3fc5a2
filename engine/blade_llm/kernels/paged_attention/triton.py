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

from blade_llm.kernels.paged_attention.batch import RaggedBatch
from blade_llm.kernels.paged_attention.triton_kernels import attend, combine

_LOG2_E = math.log2(math.e)
_PROGRAMS_PER_PROCESSOR = 4
"""Decode programs that a multiprocessor should get, so that some load while others compute."""
_MAX_SEGMENTS = 128
_MAX_FIXED_SEGMENTS = 32
"""Of a deterministic step: their buffers grow with the batch."""
_MIN_FIXED_SEGMENT = 512
_REDUCE_CHUNK = 16


@dataclass(frozen=True, slots=True)
class Config:
    """The form of one kernel."""

    rows: int
    """Query rows of a tile: tokens times query heads per KV head. At least 16, the least a tensor core takes."""
    tile: int
    """Keys a loop iteration takes."""
    warps: int
    stages: int


_PREFILL = {64: Config(128, 64, 4, 5), 128: Config(128, 64, 8, 5), 256: Config(128, 32, 8, 5)}
_DECODE = {64: Config(16, 64, 4, 5), 128: Config(16, 64, 4, 5), 256: Config(16, 32, 4, 5)}
_SMALL = {64: Config(64, 64, 4, 5), 128: Config(64, 64, 4, 5), 256: Config(64, 32, 8, 5)}
"""By head size, rounded up; for two-byte types. The small form is for prefills too short to fill the GPU with the large
one, and for all of a deterministic step, where the bits must be the same. Five stages are what it takes to load keys
and values of a tile while the one before is computed: their addresses are loaded too, a stage for each of theirs."""


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


def prepare(
    batch: RaggedBatch, block_table: Tensor, k_cache: Tensor, num_heads: int, deterministic: bool = False
) -> Prepared:
    """See :func:`blade_llm.kernels.paged_attention.prepare`; launches nothing."""
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
        segments = segments_of(least, k_cache.shape[2], _processors(k_cache.device))
    return Prepared(
        batch.slots, batch.query_starts, batch.seq_lens, block_table, sequences, decodes, segments, segment,
        batch.decodes, _part_programs(decodes, segments, k_cache, segment) if captured else 0,
    )  # fmt: skip


def _part_programs(decodes: int, segments: int, k_cache: Tensor, segment: int) -> int:
    """The most parts that up to ``decodes`` contexts are divided into, all together."""
    if segment:
        return decodes * segments
    return max(decodes, min(decodes * segments, _programs(k_cache)))


def _programs(k_cache: Tensor) -> int:
    """Decode programs of each KV head that fill the GPU."""
    return _PROGRAMS_PER_PROCESSOR * _processors(k_cache.device) // k_cache.shape[2]


def segments_of(decodes: int, kv_heads: int, processors: int) -> int:
    """Into how many parts each of ``decodes`` contexts is divided, a power of two."""
    programs = triton.next_power_of_2(max(1, decodes)) * kv_heads
    wanted = min(_MAX_SEGMENTS, max(1, _PROGRAMS_PER_PROCESSOR * processors // programs))
    return 1 << (wanted.bit_length() - 1)


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, step: Prepared, scale: float, window: int = 0
) -> Tensor:
    """See :func:`blade_llm.kernels.paged_attention.paged_attention`."""
    tokens, heads, head_dim = q.shape
    if q.stride(2) != 1 or q.stride(1) != head_dim:
        q = q.contiguous()
    # In a graph of mixed steps some tokens are padding, for which no program writes.
    empty = torch.zeros if step.device_decodes is not None else torch.empty
    out = empty(tokens, heads * head_dim, dtype=q.dtype, device=q.device)
    if step.decodes:
        if step.segments > 1:
            programs = step.part_programs or step.decodes * step.segments
            parts = torch.empty(programs, heads, head_dim, dtype=torch.float32, device=q.device)
            weights = torch.empty(programs, heads, 2, dtype=torch.float32, device=q.device)
            _launch(out, parts, weights, q, k_cache, v_cache, step, scale, window, decode=True)
            _launch_reduce(out, parts, weights, step, k_cache, head_dim, window)
        else:
            _launch(out, out, out, q, k_cache, v_cache, step, scale, window, decode=True)
    if step.decodes < step.sequences or step.device_decodes is not None:
        _launch(out, out, out, q, k_cache, v_cache, step, scale, window, decode=False)
    return out


def warm(
    k_cache: Tensor, block_table: Tensor, num_heads: int, windows: tuple[int, ...] = (0,), deterministic: bool = False
) -> None:
    """See :func:`blade_llm.kernels.paged_attention.warm`."""
    many = _processors(k_cache.device) * config_of(k_cache.shape[3], 1, 2, 1 << 20, "prefill").rows // num_heads + 1
    for window in {min(window, 1) for window in windows}:
        for counts in ([1], [2], [2] * many):  # a decode, a prefill that does not fill the GPU, and one that does
            rows = torch.zeros(len(counts), dtype=torch.int64, device=k_cache.device)
            q = torch.zeros(sum(counts), num_heads, k_cache.shape[3], dtype=k_cache.dtype, device=k_cache.device)
            batch = RaggedBatch.of(rows, counts, counts)
            step = prepare(batch, block_table, k_cache, num_heads, deterministic)
            split = (1, 2) if counts == [1] and not deterministic else (step.segments,)
            for segments in split:
                paged_attention(q, k_cache, k_cache, replace(step, segments=segments), 1.0, window)


@cache
def config_of(head_dim: int, group: int, element_size: int, shared_memory: int, form: str) -> Config:
    """The form of a kernel: ``prefill``, ``decode`` or ``small``.

    ``group``: query heads per KV head; ``shared_memory``: bytes a program may have, to which the loads in flight are
    trimmed.
    """
    padded = _padded(head_dim)
    table = {"prefill": _PREFILL, "decode": _DECODE, "small": _SMALL}[form]
    config = table[min(size for size in table if size >= padded)] if padded <= max(table) else Config(16, 16, 4, 2)
    if element_size > 2:
        config = replace(config, tile=max(16, config.tile // 2), rows=max(16, config.rows // 2))
    rows = max(config.rows, triton.next_power_of_2(group))
    tile_bytes = 2 * config.tile * padded * element_size
    spare = shared_memory - rows * padded * element_size - 1024
    # What a compiler keeps of a tile's keys and values, at most: one more for every two stages.
    stages = next(
        count for count in range(config.stages, 0, -1) if count == 1 or (count + 1) // 2 * tile_bytes <= spare
    )
    return replace(config, rows=rows, stages=stages)


def _padded(head_dim: int) -> int:
    """What a tile takes: a power of two, at least 16."""
    return max(16, triton.next_power_of_2(head_dim))


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@cache
def _shared_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return 1 << 16
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return properties["max_shared_mem"]


def _config(k_cache: Tensor, heads: int, step: Prepared, tokens: int, decode: bool) -> Config:
    """The form for ``tokens`` of ``step``, its decodes or the rest."""
    _, _, kv_heads, head_dim = k_cache.shape
    shape = head_dim, heads // kv_heads, k_cache.element_size(), _shared_memory(k_cache.device)
    if decode and not step.segment:
        return config_of(*shape, "decode")
    large = config_of(*shape, "prefill")
    fills = tokens * heads // large.rows >= _processors(k_cache.device)
    return large if fills and not step.segment else config_of(*shape, "small")


def _launch(
    out: Tensor,
    parts: Tensor,
    weights: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    step: Prepared,
    scale: float,
    window: int,
    decode: bool,
) -> None:
    tokens, heads, head_dim = q.shape
    kv_heads = k_cache.shape[2]
    captured = step.device_decodes is not None
    first = 0 if decode or captured else step.decodes
    sequences = step.decodes if decode else step.sequences - first
    config = _config(k_cache, heads, step, tokens - first, decode)
    segments = step.segments if decode else 1
    block_q = config.rows // (heads // kv_heads)
    blocks = sequences if decode else (tokens - first) // block_q + sequences
    grid = (blocks * kv_heads, segments)
    if captured and decode:  # how many parts each decode has is not known here
        grid = (step.part_programs * kv_heads, 1)
    attend[grid](
        out,
        parts,
        weights,
        q,
        k_cache,
        v_cache,
        step.block_table,
        step.slots,
        step.query_starts,
        step.seq_lens,
        step.device_decodes if captured else step.seq_lens,
        q.stride(0),
        step.block_table.stride(0),
        first,
        sequences,
        segments,
        _programs(k_cache),
        window,
        scale * _LOG2_E,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=_padded(head_dim),
        BLOCK_SIZE=k_cache.shape[1],
        BLOCK_M=config.rows,
        TILE=config.tile,
        SEGMENT_TILES=step.segment // config.tile,
        DECODE=decode,
        SPLIT=segments > 1,
        CAPTURED=captured,
        WINDOWED=window > 0,
        num_warps=config.warps,
        num_stages=config.stages,
        enable_fp_fusion=not step.segment,
    )


def _launch_reduce(
    out: Tensor, parts: Tensor, weights: Tensor, step: Prepared, k_cache: Tensor, head_dim: int, window: int
) -> None:
    heads = parts.shape[1]
    captured = step.device_decodes is not None
    tile = _config(k_cache, heads, step, step.decodes, decode=True).tile
    combine[(step.decodes * heads,)](
        out,
        parts,
        weights,
        step.seq_lens,
        step.device_decodes if captured else step.seq_lens,
        step.segments,
        _programs(k_cache),
        window,
        HEADS=heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=_padded(head_dim),
        TILE=tile,
        SEGMENT_TILES=step.segment // tile,
        # One at a time adds up in the order a deterministic prefill does.
        CHUNK=1 if step.segment else _REDUCE_CHUNK,
        CAPTURED=captured,
        WINDOWED=window > 0,
        num_warps=2,
        enable_fp_fusion=not step.segment,
    )
