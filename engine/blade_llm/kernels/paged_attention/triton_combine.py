# mypy: ignore-errors
"""Device code of paged attention: the parts of split decodes are added up."""

import triton
import triton.language as tl

from blade_llm.kernels.paged_attention.triton_ranges import first_key, segments_of


@triton.jit(
    do_not_specialize=[
        "seq_lens", "query_starts", "decodes", "shorts", "sinks", "first_token", "segments", "programs", "window"
    ]
)  # fmt: skip
def combine(
    out,
    parts,
    weights,
    seq_lens,
    query_starts,
    decodes,
    shorts,
    sinks,
    first_token,
    segments,
    programs,
    window,
    HEADS: tl.constexpr,
    V_DIM: tl.constexpr,
    V_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    SEGMENT_TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    LOCAL: tl.constexpr,
    SINKS: tl.constexpr,
    SHORT: tl.constexpr,
    CAPTURED: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """One query head of one decode: add up the parts that `attend` wrote, CHUNK at a time. SHORT: of one token of a
    sequence with few new ones; then all parts are there, those without keys with a weight of 0."""
    pair = tl.program_id(0).to(tl.int64)
    if CAPTURED:
        num_decodes = tl.load(decodes).to(tl.int32)
        if SHORT:
            num_shorts = tl.load(shorts).to(tl.int32)
            first_token = tl.load(query_starts + num_decodes).to(tl.int32)
            if pair >= (tl.load(query_starts + num_decodes + num_shorts).to(tl.int32) - first_token) * HEADS:
                return
            segments = segments_of(num_shorts, segments, programs)
        else:
            if pair >= num_decodes * HEADS:
                return
            if SEGMENT_TILES == 0:
                segments = segments_of(num_decodes, segments, programs)
    first = 0
    last = segments
    if not SHORT:
        length = tl.load(seq_lens + pair // HEADS).to(tl.int32)
        end_tile = tl.cdiv(length, TILE)
        first_tile = 0
        if WINDOWED or LOCAL > 0:
            first_tile = first_key(length - 1, window, LOCAL, WINDOWED) // TILE
        if SEGMENT_TILES > 0:
            first = first_tile // SEGMENT_TILES
            last = tl.cdiv(end_tile, SEGMENT_TILES)
        else:
            last = tl.cdiv(end_tile - first_tile, tl.maximum(tl.cdiv(end_tile - first_tile, segments), 1))

    dims = tl.arange(0, V_PADDED)
    acc = tl.zeros([V_PADDED], tl.float32)
    total = 0.0
    maximum = float("-inf")
    for start in range(first, last, CHUNK):
        index = start + tl.arange(0, CHUNK)
        at = pair * segments + index
        part_total = tl.load(weights + at * 2, mask=index < last, other=0.0)
        part_maximum = tl.load(weights + at * 2 + 1, mask=index < last, other=float("-inf"))
        inside = (index < last)[:, None] & (dims < V_DIM)[None, :]
        part_acc = tl.load(parts + at[:, None] * V_DIM + dims[None, :], mask=inside, other=0.0)
        higher = tl.maximum(maximum, tl.max(part_maximum, 0))
        if SHORT:  # else it is never -inf: a decode sees a key of each of its parts
            higher = tl.where(higher == float("-inf"), -1e30, higher)
        old, new = tl.exp2(maximum - higher), tl.exp2(part_maximum - higher)
        acc = acc * old + tl.sum(part_acc * new[:, None], 0)
        total = total * old + tl.sum(part_total * new, 0)
        maximum = higher
    if SINKS:
        total += tl.exp2(tl.load(sinks + pair % HEADS) * 1.4426950408889634 - maximum)
    acc = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(out + (first_token * HEADS + pair) * V_DIM + dims, acc.to(out.dtype.element_ty), mask=dims < V_DIM)
