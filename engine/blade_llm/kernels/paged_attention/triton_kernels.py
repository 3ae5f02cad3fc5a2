# mypy: ignore-errors
"""The device code of paged attention; :mod:`blade_llm.kernels.paged_attention.triton` launches it and explains it.

Capitals are compile-time constants. A context is walked in tiles of TILE keys counted from its beginning, whatever the
cache's block size, and whatever part of it a program was given: so that who computes a tile never changes its bits.
"""

import triton
import triton.language as tl

from blade_llm.kernels.paged_attention.triton_ranges import first_key, segment_tiles, segments_of, sequence_of
from blade_llm.kernels.paged_attention.triton_softmax import attend_to_tiles


@triton.jit(
    do_not_specialize=[
        "slots", "query_starts", "seq_lens", "decodes", "shorts", "slopes", "sinks", "tree", "table_stride",
        "first_sequence", "sequences", "segments", "programs", "window",
    ]
)  # fmt: skip
def attend(
    out,  # [tokens, HEADS, V_DIM]
    parts,  # [decodes, HEADS, segments, V_DIM] fp32, if SPLIT
    weights,  # [decodes, HEADS, segments, 2] fp32, if SPLIT: sum and maximum
    q,
    k_cache,
    v_cache,
    block_table,
    slots,
    query_starts,
    seq_lens,
    decodes,  # [1], if CAPTURED: leading sequences of one token; `sequences` and `segments` are the most there may be
    shorts,  # [1], if SHORTS: sequences behind those of few tokens each
    slopes,  # [HEADS] fp32, if ALIBI
    sinks,  # [HEADS] fp32, if SINKS
    tree,  # [tokens, 3], if TREE: see RaggedBatch.tree
    q_stride,
    table_stride,
    first_sequence,
    sequences,
    segments,
    programs,
    window,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,  # each counted HEAD_SPLITS times, for as many parts of the query heads that share it
    HEAD_SPLITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,  # of the first dimensions where REST_DIM is not 0: that holds the others
    REST_DIM: tl.constexpr,
    METHOD: tl.constexpr,  # of quantised keys, else 0: see kv_rows_triton
    V_METHOD: tl.constexpr,  # of quantised values
    GROUP_SIZE: tl.constexpr,
    K_HEAD_STRIDE: tl.constexpr,
    V_SLOT_STRIDE: tl.constexpr,
    V_HEAD_STRIDE: tl.constexpr,
    V_DIM: tl.constexpr,
    V_PADDED: tl.constexpr,
    SHARED_KV: tl.constexpr,  # values are the first PADDED_DIM dimensions of keys
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE: tl.constexpr,
    SEGMENT_TILES: tl.constexpr,
    SOFTCAP: tl.constexpr,  # times log2(e)
    LOCAL: tl.constexpr,
    ALIBI: tl.constexpr,
    SINKS: tl.constexpr,
    CAUSAL: tl.constexpr,
    TREE: tl.constexpr,
    DECODE: tl.constexpr,
    SHORT: tl.constexpr,  # of those sequences
    SHORTS: tl.constexpr,
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
                    segments = segments_of(num_decodes, segments, programs)
                part = block % segments
                block = block // segments
            if block >= num_decodes:
                return
        else:
            first_sequence = num_decodes
            num_shorts: tl.int32 = 0
            if SHORTS:
                num_shorts = tl.load(shorts).to(tl.int32)
            if SHORT:
                if SPLIT:
                    segments = segments_of(num_shorts, segments, programs)
                    part = block % segments
                    block = block // segments
                if block >= num_shorts:
                    return
            else:
                first_sequence += num_shorts
                sequences -= first_sequence
                if sequences <= 0:
                    return
    if DECODE:
        sequence = block
        first_token = block
        count = 1
        past = tl.load(seq_lens + sequence).to(tl.int32) - 1
    else:
        if SHORT:
            sequence = first_sequence + block
            local = 0
        else:
            # A sequence's last blocks have most to do: they start first.
            block = tl.num_programs(0) // KV_HEADS - 1 - block
            found, local = sequence_of(block, query_starts + first_sequence, sequences, BLOCK_Q)
            sequence = first_sequence + found
        stop = tl.load(query_starts + sequence + 1).to(tl.int32)
        first_token = tl.load(query_starts + sequence).to(tl.int32) + local * BLOCK_Q
        if first_token >= stop:
            return
        count = tl.minimum(BLOCK_Q, stop - first_token)
        past = tl.load(seq_lens + sequence).to(tl.int32) - (stop - first_token)

    branching_from = past  # the place of the sequence's first new token
    if TREE:
        branching_from = tl.load(seq_lens + sequence).to(tl.int32) - (
            stop - tl.load(query_starts + sequence).to(tl.int32)
        )
    length = past + count
    if not CAUSAL:
        length = tl.load(seq_lens + sequence).to(tl.int32)
    end_tile = tl.cdiv(length, TILE)
    first_tile = 0
    if WINDOWED or LOCAL > 0:
        first_tile = first_key(branching_from, window, LOCAL, WINDOWED) // TILE
    begin, end = segment_tiles(part, first_tile, end_tile, segments, SEGMENT_TILES)
    if SPLIT and not SHORT:  # noqa: SIM102 (a compile-time branch)
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
    queries_rest = queries
    if REST_DIM > 0:
        rest = PADDED_DIM + tl.arange(0, REST_DIM)
        rest_kept = (row_tokens < count)[:, None] & (rest < HEAD_DIM)[None, :]
        rest_at = (tokens * q_stride + heads * HEAD_DIM)[:, None] + rest[None, :]
        queries_rest = tl.load(q + rest_at, mask=rest_kept, other=0.0)
    row_places = past + row_tokens
    row_positions = row_places
    row_low = row_places
    row_high = row_places
    if TREE:
        row_tree = tree + tokens * 3
        row_low = tl.load(row_tree, mask=row_tokens < count, other=-1)
        row_high = tl.load(row_tree + 1, mask=row_tokens < count, other=-1)
        row_positions -= tl.load(row_tree + 2, mask=row_tokens < count, other=0).to(tl.int32)
    row_slopes = row_positions
    if ALIBI:
        row_slopes = tl.load(slopes + heads) * 1.4426950408889634
    if not CAUSAL:  # every row sees what the last position sees
        past = length - 1
        row_positions = row_positions * 0 + past
        row_places = row_positions
    table_row = block_table + tl.load(slots + sequence) * table_stride
    k_head = k_cache + kv_head // HEAD_SPLITS * K_HEAD_STRIDE
    v_head = v_cache + kv_head // HEAD_SPLITS * V_HEAD_STRIDE
    SLOT_STRIDE: tl.constexpr = KV_HEADS // HEAD_SPLITS * K_HEAD_STRIDE

    if SEGMENT_TILES > 0 and not SPLIT:
        # Add up what the programs of a split decode would, in the order in which `combine` does.
        acc = tl.zeros([BLOCK_M, V_PADDED], tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
        for index in range(first_tile // SEGMENT_TILES, tl.cdiv(end_tile, SEGMENT_TILES)):
            begin, end = segment_tiles(index, first_tile, end_tile, segments, SEGMENT_TILES)
            part_acc, part_total, part_maximum = attend_to_tiles(
                queries, queries_rest, k_head, v_head, table_row, begin, end, past, row_places, row_positions,
                row_slopes, row_low, row_high, branching_from, length, window, scale, SLOT_STRIDE, HEAD_DIM, PADDED_DIM,
                REST_DIM, V_SLOT_STRIDE, V_DIM, V_PADDED, SHARED_KV, BLOCK_SIZE, BLOCK_M, TILE, SOFTCAP, LOCAL, ALIBI,
                WINDOWED, TREE, False, METHOD, V_METHOD, GROUP_SIZE,
            )  # fmt: skip
            higher = tl.maximum(maximum, part_maximum)
            base = tl.where(higher == float("-inf"), 0.0, higher)
            old, new = tl.exp2(maximum - base), tl.exp2(part_maximum - base)
            acc = acc * old[:, None] + part_acc * new[:, None]
            total = total * old + part_total * new
            maximum = higher
    else:
        acc, total, maximum = attend_to_tiles(
            queries, queries_rest, k_head, v_head, table_row, begin, end, past, row_places, row_positions, row_slopes,
            row_low, row_high, branching_from, length, window, scale, SLOT_STRIDE, HEAD_DIM, PADDED_DIM, REST_DIM,
            V_SLOT_STRIDE, V_DIM, V_PADDED, SHARED_KV, BLOCK_SIZE, BLOCK_M, TILE, SOFTCAP, LOCAL, ALIBI, WINDOWED, TREE,
            DECODE and SEGMENT_TILES == 0, METHOD, V_METHOD, GROUP_SIZE,
        )  # fmt: skip

    at = tokens * HEADS + heads
    if SPLIT and SHORT:  # parts are counted from the first such token
        at -= tl.load(query_starts + first_sequence) * HEADS
    v_dims = tl.arange(0, V_PADDED)
    kept = (row_tokens < count)[:, None] & (v_dims < V_DIM)[None, :]
    if SPLIT:
        at = at * segments + part
        tl.store(weights + at * 2, total, mask=row_tokens < count)
        tl.store(weights + at * 2 + 1, maximum, mask=row_tokens < count)
        tl.store(parts + at[:, None] * V_DIM + v_dims[None, :], acc, mask=kept)
    else:
        if SINKS:
            total += tl.exp2(tl.load(sinks + heads) * 1.4426950408889634 - maximum)
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]  # an empty sequence gets zeros
        tl.store(out + at[:, None] * V_DIM + v_dims[None, :], acc.to(out.dtype.element_ty), mask=kept)
