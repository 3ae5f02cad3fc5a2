# mypy: ignore-errors
"""Device code of paged attention: which sequence a program works on, and which tiles of its keys."""

import triton
import triton.language as tl


@triton.jit
def sequence_of(block, query_starts, sequences, BLOCK_Q: tl.constexpr):
    """The sequence that query block ``block`` belongs to, and which of its blocks it is.

    Sequence ``i`` has the blocks from ``query_starts[i] // BLOCK_Q + i`` on: enough for each, some left over.
    """
    base = tl.load(query_starts)
    low: tl.int32 = 0
    high = sequences
    while low + 1 < high:
        middle = (low + high) // 2
        start = ((tl.load(query_starts + middle) - base) // BLOCK_Q).to(tl.int32) + middle
        if start <= block:
            low = middle
        else:
            high = middle
    start = ((tl.load(query_starts + low) - base) // BLOCK_Q).to(tl.int32) + low
    return low, block - start


@triton.jit
def segments_of(decodes, most, programs):
    """Into how many parts each context is divided: what the host's ``segments_of`` says, where ``programs`` of a head
    fill the GPU."""
    padded: tl.int32 = 1
    while padded < decodes:
        padded *= 2
    segments: tl.int32 = 1
    while (segments * 2 <= most) & (segments * 2 * padded <= programs):
        segments *= 2
    return segments


@triton.jit
def segment_tiles(index, first_tile, end_tile, segments, SEGMENT_TILES: tl.constexpr):
    """The tiles of part ``index``; none where the first is not before the second."""
    if SEGMENT_TILES > 0:
        begin = tl.maximum(index * SEGMENT_TILES, first_tile)
        end = tl.minimum((index + 1) * SEGMENT_TILES, end_tile)
    else:
        share = tl.cdiv(end_tile - first_tile, segments)
        begin = first_tile + index * share
        end = tl.minimum(begin + share, end_tile)
    return begin, end


@triton.jit
def first_key(position, window, LOCAL: tl.constexpr, WINDOWED: tl.constexpr):
    """The first position that a query at ``position`` sees."""
    first = position * 0
    if WINDOWED:
        first = tl.maximum(position - window + 1, 0)
    if LOCAL > 0:
        first = tl.maximum(first, position // LOCAL * LOCAL)
    return first
