# mypy: ignore-errors
"""The device code of paged attention; :mod:`blade_llm.kernels.paged_attention.triton` launches it and explains it.

Capitals are compile-time constants. A context is walked in tiles of TILE keys counted from its beginning, whatever the
cache's block size, and whatever part of it a program was given: so that who computes a tile never changes its bits.
"""

import triton
import triton.language as tl


@triton.jit
def _sequence_of(block, query_starts, sequences, BLOCK_Q: tl.constexpr):
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
def _segments_of(decodes, most, programs):
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
def _segment(index, first_tile, end_tile, segments, SEGMENT_TILES: tl.constexpr):
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
def _load(pointers, inside, WHOLE: tl.constexpr):
    if WHOLE:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def _accumulate(
    acc,
    total,
    maximum,
    queries,
    k_cache,
    v_cache,
    table_row,
    begin,
    end,
    row_positions,
    length,
    window,
    scale,
    SLOT_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """The online softmax over tiles ``begin`` to ``end``. Without MASKED every row sees every key of them."""
    WHOLE: tl.constexpr = not MASKED and PADDED_DIM == HEAD_DIM
    dims = tl.arange(0, PADDED_DIM)
    for tile in range(begin, end):
        positions = tile * TILE + tl.arange(0, TILE)
        inside = (dims < HEAD_DIM)[None, :]
        if MASKED:
            blocks = tl.load(table_row + positions // BLOCK_SIZE, mask=positions < length, other=0)
            inside = (positions < length)[:, None] & inside
        else:
            blocks = tl.load(table_row + positions // BLOCK_SIZE)
        cache_slots = blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
        at = cache_slots[:, None] * SLOT_STRIDE + dims[None, :]
        keys = _load(k_cache + at, inside, WHOLE)
        logits = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        if MASKED:
            visible = positions[None, :] <= row_positions[:, None]
            if WINDOWED:
                visible = visible & (positions[None, :] > row_positions[:, None] - window)
            logits = tl.where(visible, logits, float("-inf"))
        higher = tl.maximum(maximum, tl.max(logits, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that sees nothing yet
        shares = tl.exp2(logits - base[:, None])
        kept = tl.exp2(maximum - base)
        total = total * kept + tl.sum(shares, 1)
        values = _load(v_cache + at, inside, WHOLE)
        acc = tl.dot(shares.to(values.dtype), values, acc * kept[:, None], input_precision="ieee")
        maximum = higher
    return acc, total, maximum


@triton.jit
def _part(
    queries,
    k_cache,
    v_cache,
    table_row,
    begin,
    end,
    past,
    row_positions,
    length,
    window,
    scale,
    SLOT_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """Attention to tiles ``begin`` to ``end``: unnormalised output, sum of weights and the exponent both relate to."""
    acc = tl.zeros([BLOCK_M, PADDED_DIM], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    masked_from = begin
    if not WINDOWED:
        masked_from = tl.maximum(begin, tl.minimum(end, (past + 1) // TILE))
        acc, total, maximum = _accumulate(
            acc, total, maximum, queries, k_cache, v_cache, table_row, begin, masked_from,
            row_positions, length, window, scale,
            SLOT_STRIDE, HEAD_DIM, PADDED_DIM, BLOCK_SIZE, TILE, False, False,
        )  # fmt: skip
    return _accumulate(
        acc, total, maximum, queries, k_cache, v_cache, table_row, masked_from, end,
        row_positions, length, window, scale,
        SLOT_STRIDE, HEAD_DIM, PADDED_DIM, BLOCK_SIZE, TILE, True, WINDOWED,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "slots", "query_starts", "seq_lens", "decodes", "table_stride", "first_sequence", "sequences", "segments",
        "programs", "window",
    ]
)  # fmt: skip
def attend(
    out,  # [tokens, HEADS, HEAD_DIM]
    parts,  # [decodes, HEADS, segments, HEAD_DIM] fp32, if SPLIT
    weights,  # [decodes, HEADS, segments, 2] fp32, if SPLIT: sum and maximum
    q,
    k_cache,
    v_cache,
    block_table,
    slots,
    query_starts,
    seq_lens,
    decodes,  # [1], if CAPTURED: leading sequences of one token; `sequences` and `segments` are the most there may be
    q_stride,
    table_stride,
    first_sequence,
    sequences,
    segments,
    programs,
    window,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE: tl.constexpr,
    SEGMENT_TILES: tl.constexpr,
    DECODE: tl.constexpr,
    SPLIT: tl.constexpr,
    CAPTURED: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    kv_head = tl.program_id(0) % KV_HEADS
    block = tl.program_id(0) // KV_HEADS
    part = tl.program_id(1)
    if CAPTURED:
        num_decodes = tl.load(decodes).to(tl.int32)
        if DECODE:
            if SPLIT:
                if SEGMENT_TILES == 0:
                    segments = _segments_of(num_decodes, segments, programs)
                part = block % segments
                block = block // segments
            if block >= num_decodes:
                return
        else:
            first_sequence = num_decodes
            sequences -= num_decodes
            if sequences == 0:
                return
    if DECODE:
        sequence = block
        first_token = block
        count = 1
        past = tl.load(seq_lens + sequence).to(tl.int32) - 1
    else:
        # A sequence's last blocks have most to do: they start first.
        block = tl.num_programs(0) // KV_HEADS - 1 - block
        found, local = _sequence_of(block, query_starts + first_sequence, sequences, BLOCK_Q)
        sequence = first_sequence + found
        stop = tl.load(query_starts + sequence + 1).to(tl.int32)
        first_token = tl.load(query_starts + sequence).to(tl.int32) + local * BLOCK_Q
        if first_token >= stop:
            return
        count = tl.minimum(BLOCK_Q, stop - first_token)
        past = tl.load(seq_lens + sequence).to(tl.int32) - (stop - first_token)

    length = past + count
    end_tile = tl.cdiv(length, TILE)
    first_tile = 0
    if WINDOWED:
        first_tile = tl.maximum(past - window + 1, 0) // TILE
    begin, end = _segment(part, first_tile, end_tile, segments, SEGMENT_TILES)
    if SPLIT:  # noqa: SIM102 (a compile-time branch)
        if begin >= end:
            return

    # Row m is query head m % GROUP of token m // GROUP.
    lanes = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, PADDED_DIM)
    heads = kv_head * GROUP + lanes % GROUP
    row_tokens = lanes // GROUP
    kept = (row_tokens < count)[:, None] & (dims < HEAD_DIM)[None, :]
    tokens = (first_token + row_tokens).to(tl.int64)
    queries = tl.load(q + (tokens * q_stride + heads * HEAD_DIM)[:, None] + dims[None, :], mask=kept, other=0.0)
    row_positions = past + row_tokens
    table_row = block_table + tl.load(slots + sequence) * table_stride
    k_head = k_cache + kv_head * HEAD_DIM
    v_head = v_cache + kv_head * HEAD_DIM
    SLOT_STRIDE: tl.constexpr = KV_HEADS * HEAD_DIM

    if SEGMENT_TILES > 0 and not SPLIT:
        # Add up what the programs of a split decode would, in the order in which `combine` does.
        acc = tl.zeros([BLOCK_M, PADDED_DIM], tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
        for index in range(first_tile // SEGMENT_TILES, tl.cdiv(end_tile, SEGMENT_TILES)):
            begin, end = _segment(index, first_tile, end_tile, segments, SEGMENT_TILES)
            part_acc, part_total, part_maximum = _part(
                queries, k_head, v_head, table_row, begin, end, past, row_positions, length, window, scale,
                SLOT_STRIDE, HEAD_DIM, PADDED_DIM, BLOCK_SIZE, BLOCK_M, TILE, WINDOWED,
            )  # fmt: skip
            higher = tl.maximum(maximum, part_maximum)
            base = tl.where(higher == float("-inf"), 0.0, higher)
            old, new = tl.exp2(maximum - base), tl.exp2(part_maximum - base)
            acc = acc * old[:, None] + part_acc * new[:, None]
            total = total * old + part_total * new
            maximum = higher
    else:
        acc, total, maximum = _part(
            queries, k_head, v_head, table_row, begin, end, past, row_positions, length, window, scale,
            SLOT_STRIDE, HEAD_DIM, PADDED_DIM, BLOCK_SIZE, BLOCK_M, TILE, WINDOWED,
        )  # fmt: skip

    at = tokens * HEADS + heads
    if SPLIT:
        at = at * segments + part
        tl.store(weights + at * 2, total, mask=row_tokens < count)
        tl.store(weights + at * 2 + 1, maximum, mask=row_tokens < count)
        tl.store(parts + at[:, None] * HEAD_DIM + dims[None, :], acc, mask=kept)
    else:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]  # an empty sequence gets zeros
        tl.store(out + at[:, None] * HEAD_DIM + dims[None, :], acc.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["seq_lens", "decodes", "segments", "programs", "window"])
def combine(
    out,
    parts,
    weights,
    seq_lens,
    decodes,
    segments,
    programs,
    window,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE: tl.constexpr,
    SEGMENT_TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    CAPTURED: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """One query head of one decode: add up the parts that `attend` wrote, CHUNK at a time."""
    pair = tl.program_id(0).to(tl.int64)
    if CAPTURED:
        num_decodes = tl.load(decodes).to(tl.int32)
        if pair >= num_decodes * HEADS:
            return
        if SEGMENT_TILES == 0:
            segments = _segments_of(num_decodes, segments, programs)
    length = tl.load(seq_lens + pair // HEADS).to(tl.int32)
    end_tile = tl.cdiv(length, TILE)
    first_tile = 0
    if WINDOWED:
        first_tile = tl.maximum(length - window, 0) // TILE
    if SEGMENT_TILES > 0:
        first = first_tile // SEGMENT_TILES
        last = tl.cdiv(end_tile, SEGMENT_TILES)
    else:
        first = 0
        last = tl.cdiv(end_tile - first_tile, tl.maximum(tl.cdiv(end_tile - first_tile, segments), 1))

    dims = tl.arange(0, PADDED_DIM)
    acc = tl.zeros([PADDED_DIM], tl.float32)
    total = 0.0
    maximum = float("-inf")
    for start in range(first, last, CHUNK):
        index = start + tl.arange(0, CHUNK)
        at = pair * segments + index
        part_total = tl.load(weights + at * 2, mask=index < last, other=0.0)
        part_maximum = tl.load(weights + at * 2 + 1, mask=index < last, other=float("-inf"))
        inside = (index < last)[:, None] & (dims < HEAD_DIM)[None, :]
        part_acc = tl.load(parts + at[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
        higher = tl.maximum(maximum, tl.max(part_maximum, 0))  # never -inf: a decode sees a key of each of its parts
        old, new = tl.exp2(maximum - higher), tl.exp2(part_maximum - higher)
        acc = acc * old + tl.sum(part_acc * new[:, None], 0)
        total = total * old + tl.sum(part_total * new, 0)
        maximum = higher
    acc = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(out + pair * HEAD_DIM + dims, acc.to(out.dtype.element_ty), mask=dims < HEAD_DIM)
