# mypy: ignore-errors
"""Device code of paged attention: scores, the online softmax and the sum of values over a range of tiles."""

import triton
import triton.language as tl

from blade_llm.kernels.kv_rows_triton import load_rows


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
    queries_rest,
    k_cache,
    v_cache,
    table_row,
    begin,
    end,
    row_places,
    row_positions,
    row_slopes,
    row_low,
    row_high,
    branching_from,
    length,
    window,
    scale,
    SLOT_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    REST_DIM: tl.constexpr,
    V_SLOT_STRIDE: tl.constexpr,
    V_DIM: tl.constexpr,
    V_PADDED: tl.constexpr,
    SHARED_KV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    LOCAL: tl.constexpr,
    ALIBI: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
    TREE: tl.constexpr,
    METHOD: tl.constexpr,
    V_METHOD: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
):
    """The online softmax over tiles ``begin`` to ``end``. Without MASKED every row sees every key of them."""
    WHOLE: tl.constexpr = not MASKED and PADDED_DIM <= HEAD_DIM
    V_WHOLE: tl.constexpr = not MASKED and V_PADDED == V_DIM
    dims = tl.arange(0, PADDED_DIM)
    v_dims = tl.arange(0, V_PADDED)
    for tile in range(begin, end):
        positions = tile * TILE + tl.arange(0, TILE)
        inside = (dims < HEAD_DIM)[None, :]
        v_inside = (v_dims < V_DIM)[None, :]
        if MASKED:
            blocks = tl.load(table_row + positions // BLOCK_SIZE, mask=positions < length, other=0)
            inside = (positions < length)[:, None] & inside
            v_inside = (positions < length)[:, None] & v_inside
        else:
            blocks = tl.load(table_row + positions // BLOCK_SIZE)
        cache_slots = blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
        if METHOD > 0:
            keys = load_rows(k_cache, cache_slots * SLOT_STRIDE, dims, inside, METHOD, GROUP_SIZE, HEAD_DIM)
            keys = keys.to(queries.dtype)
        else:
            at = cache_slots[:, None] * SLOT_STRIDE + dims[None, :]
            keys = _load(k_cache + at, inside, WHOLE)
        logits = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        if REST_DIM > 0:
            rest = tl.arange(0, REST_DIM)
            rest_inside = (rest < HEAD_DIM - PADDED_DIM)[None, :]
            if MASKED:
                rest_inside = (positions < length)[:, None] & rest_inside
            rest_at = cache_slots[:, None] * SLOT_STRIDE + PADDED_DIM + rest[None, :]
            rest_whole: tl.constexpr = not MASKED and REST_DIM == HEAD_DIM - PADDED_DIM
            if METHOD > 0:
                keys_rest = load_rows(
                    k_cache, cache_slots * SLOT_STRIDE, PADDED_DIM + rest, rest_inside, METHOD, GROUP_SIZE, HEAD_DIM
                ).to(queries.dtype)
            else:
                keys_rest = _load(k_cache + rest_at, rest_inside, rest_whole)
            logits = tl.dot(queries_rest, tl.trans(keys_rest), logits, input_precision="ieee")
        logits = logits * scale
        if SOFTCAP > 0:  # the scale is that of exp(2x) in tanh(x) = 1 - 2 / (exp(2x) + 1), as a power of two
            logits = SOFTCAP - 2.0 * SOFTCAP / (tl.exp2(logits) + 1.0)
        if ALIBI:
            logits += row_slopes[:, None] * (positions[None, :] - row_positions[:, None]).to(tl.float32)
        if MASKED:
            visible = positions[None, :] <= row_places[:, None]
            if TREE:
                bit = positions[None, :] - branching_from
                words = tl.where(bit < 64, row_low[:, None], row_high[:, None])
                seen = (words >> (bit & 63).to(tl.int64)) & 1
                visible = visible & ((bit < 0) | (bit >= 128) | (seen != 0))
            if WINDOWED:
                visible = visible & (positions[None, :] > row_positions[:, None] - window)
            if LOCAL > 0:
                visible = visible & (positions[None, :] >= (row_positions // LOCAL * LOCAL)[:, None])
            logits = tl.where(visible, logits, float("-inf"))
        higher = tl.maximum(maximum, tl.max(logits, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that sees nothing yet
        shares = tl.exp2(logits - base[:, None])
        kept = tl.exp2(maximum - base)
        total = total * kept + tl.sum(shares, 1)
        if SHARED_KV:
            values = keys
        elif V_METHOD > 0:
            values = load_rows(v_cache, cache_slots * V_SLOT_STRIDE, v_dims, v_inside, V_METHOD, GROUP_SIZE, V_DIM)
            values = values.to(queries.dtype)
        else:
            v_at = cache_slots[:, None] * V_SLOT_STRIDE + v_dims[None, :]
            values = _load(v_cache + v_at, v_inside, V_WHOLE)
        acc = tl.dot(shares.to(values.dtype), values, acc * kept[:, None], input_precision="ieee")
        maximum = higher
    return acc, total, maximum


@triton.jit
def attend_to_tiles(
    queries,
    queries_rest,
    k_cache,
    v_cache,
    table_row,
    begin,
    end,
    past,
    row_places,
    row_positions,
    row_slopes,
    row_low,
    row_high,
    branching_from,
    length,
    window,
    scale,
    SLOT_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    REST_DIM: tl.constexpr,
    V_SLOT_STRIDE: tl.constexpr,
    V_DIM: tl.constexpr,
    V_PADDED: tl.constexpr,
    SHARED_KV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    LOCAL: tl.constexpr,
    ALIBI: tl.constexpr,
    WINDOWED: tl.constexpr,
    TREE: tl.constexpr,
    ONE_LOOP: tl.constexpr,
    METHOD: tl.constexpr,
    V_METHOD: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
):
    """Attention to tiles ``begin`` to ``end``: unnormalised output, sum of weights and the exponent both relate to.
    All rows see what is up to position ``past``, and, where tokens branch, before ``branching_from``.

    ONE_LOOP: mask all tiles, also those of which every row sees every key. Where loads take all the time, that costs
    nothing, and those of the last tile do not wait for the end of another loop."""
    acc = tl.zeros([BLOCK_M, V_PADDED], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    masked_from = begin
    if not WINDOWED and LOCAL == 0 and not ONE_LOOP:
        masked_from = tl.maximum(begin, tl.minimum(end, (branching_from if TREE else past + 1) // TILE))
        acc, total, maximum = _accumulate(
            acc, total, maximum, queries, queries_rest, k_cache, v_cache, table_row, begin, masked_from,
            row_places, row_positions, row_slopes, row_low, row_high, branching_from, length, window, scale,
            SLOT_STRIDE, HEAD_DIM, PADDED_DIM, REST_DIM, V_SLOT_STRIDE, V_DIM, V_PADDED, SHARED_KV, BLOCK_SIZE, TILE,
            SOFTCAP, LOCAL, ALIBI, False, False, False, METHOD, V_METHOD, GROUP_SIZE,
        )  # fmt: skip
    return _accumulate(
        acc, total, maximum, queries, queries_rest, k_cache, v_cache, table_row, masked_from, end,
        row_places, row_positions, row_slopes, row_low, row_high, branching_from, length, window, scale,
        SLOT_STRIDE, HEAD_DIM, PADDED_DIM, REST_DIM, V_SLOT_STRIDE, V_DIM, V_PADDED, SHARED_KV, BLOCK_SIZE, TILE,
        SOFTCAP, LOCAL, ALIBI, True, WINDOWED, TREE, METHOD, V_METHOD, GROUP_SIZE,
    )  # fmt: skip
