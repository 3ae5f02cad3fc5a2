# mypy: ignore-errors
"""The device code of adapters; :mod:`blade_llm.kernels.lora.triton` launches it and explains it. Capitals are
compile-time constants."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tiles"])
def find_tiles(
    starts_ptr, tiles_ptr, tiles, BUFFERS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Which tokens each tile has: as many tiles as each buffer's tokens fill, one buffer after another.

    ``starts_ptr``: [buffers + 1] int32, where each buffer's tokens begin in their order.
    """
    buffers = tl.arange(0, PADDED)
    used = (buffers > 0) & (buffers < BUFFERS)
    begins = tl.load(starts_ptr + buffers, used, 0)
    ends = tl.load(starts_ptr + buffers + 1, used, 0)
    filled = (ends - begins + ROWS - 1) // ROWS
    after = tl.cumsum(filled, 0)
    tile = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    buffer = tl.sum((after[None, :] <= tile[:, None]).to(tl.int32), 1)
    exists = buffer < PADDED
    mine = buffers[None, :] == buffer[:, None]
    first_tile = tl.sum(tl.where(mine, (after - filled)[None, :], 0), 1)
    begin = tl.sum(tl.where(mine, begins[None, :], 0), 1) + (tile - first_tile) * ROWS
    end = tl.minimum(tl.sum(tl.where(mine, ends[None, :], 0), 1), begin + ROWS)
    inside = tile < tiles
    tl.store(tiles_ptr + tile * 4, tl.where(exists, buffer, 0), inside)
    tl.store(tiles_ptr + tile * 4 + 1, begin, inside)
    tl.store(tiles_ptr + tile * 4 + 2, end, inside)


@triton.jit
def _shrink_ranks(
    x_row, a_ptr, out_row, valid, first, rank, begin, end, inputs, a_stride,
    BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """``BLOCK_R`` of the ranks, from ``first`` on, over a part of the inputs."""
    ranks = first + tl.arange(0, BLOCK_R)
    a_row = a_ptr + ranks[None, :] * a_stride
    acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    for start in range(begin, end, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        inside = columns < inputs
        x = tl.load(x_row + columns[None, :], valid[:, None] & inside[None, :], 0.0)
        a = tl.load(a_row + columns[:, None], (ranks < rank)[None, :] & inside[:, None], 0.0)
        if WIDE:
            x, a = x.to(tl.float32), a.to(tl.float32)
        acc = tl.dot(x, a, acc, input_precision="ieee")
    tl.store(out_row + ranks[None, :], acc, valid[:, None] & (ranks < rank)[None, :])


@triton.jit(do_not_specialize=["tokens"])
def shrink(
    x_ptr, weights_ptr, entries_ptr, order_ptr, tiles_ptr, out_ptr, tokens, x_stride, inputs, a_stride, entry_stride,
    buffer_units, ranks,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A part of the inputs of one tile's ``A x``, of all ranks that its adapter has here: [splits, tokens, ranks] fp32,
    tokens in their order by adapter."""
    buffer = tl.load(tiles_ptr + tl.program_id(0) * 4)
    if buffer == 0:
        return
    entry = entries_ptr + buffer * entry_stride
    rank = tl.load(entry + 1)
    if rank == 0:
        return
    begin = tl.load(tiles_ptr + tl.program_id(0) * 4 + 1)
    places = begin + tl.arange(0, BLOCK_M)
    valid = places < tl.load(tiles_ptr + tl.program_id(0) * 4 + 2)
    rows = tl.load(order_ptr + places, valid, 0)
    units = (buffer - 1).to(tl.int64) * buffer_units + tl.load(entry)
    a_ptr = weights_ptr + units * UNIT
    x_row = x_ptr + rows.to(tl.int64)[:, None] * x_stride
    split = tl.program_id(1)
    out_row = out_ptr + (split.to(tl.int64) * tokens + places)[:, None] * ranks
    length = tl.cdiv(tl.cdiv(inputs, BLOCK_K), tl.num_programs(1)) * BLOCK_K
    first, last = split * length, tl.minimum(inputs, (split + 1) * length)
    # By the adapter's own rank: one of rank 8 does not compute, nor load, what one of rank 256 does.
    if rank <= 16:
        _shrink_ranks(x_row, a_ptr, out_row, valid, 0, rank, first, last, inputs, a_stride, 16, BLOCK_M, BLOCK_K, WIDE)
    elif rank <= 32:
        _shrink_ranks(x_row, a_ptr, out_row, valid, 0, rank, first, last, inputs, a_stride, 32, BLOCK_M, BLOCK_K, WIDE)
    else:
        for start in range(0, rank, 64):
            _shrink_ranks(
                x_row, a_ptr, out_row, valid, start, rank, first, last, inputs, a_stride, 64, BLOCK_M, BLOCK_K, WIDE
            )


@triton.jit
def _expand_ranks(
    partial_row, b_ptr, valid, inside, columns, rank, splits, split_stride, b_stride,
    BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """``shrunk @ B`` of all ranks, ``BLOCK_R`` at a time."""
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, rank, BLOCK_R):
        ranks = start + tl.arange(0, BLOCK_R)
        exists = ranks < rank
        b = tl.load(b_ptr + ranks[:, None] * b_stride + columns[None, :], exists[:, None] & inside[None, :], 0.0)
        shrunk = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
        for split in range(splits):  # always in this order
            part = partial_row + split * split_stride + ranks[None, :]
            shrunk += tl.load(part, valid[:, None] & exists[None, :], 0.0)
        if WIDE:
            acc = tl.dot(shrunk, b.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(shrunk.to(b.dtype), b, acc)
    return acc


@triton.jit(do_not_specialize=["splits", "split_stride", "y_steps"])
def expand(
    partial_ptr, weights_ptr, entries_ptr, parts_ptr, order_ptr, tiles_ptr, y_ptr, entry_stride, buffer_units, ranks,
    splits, split_stride, y_steps,
    UNIT: tl.constexpr, STEP: tl.constexpr, HEAD: tl.constexpr, PART: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add to ``BLOCK_N`` outputs of one part what a tile's adapter makes there."""
    buffer = tl.load(tiles_ptr + tl.program_id(1) * 4)
    if buffer == 0:
        return
    part = tl.program_id(2)
    piece = entries_ptr + buffer * entry_stride + HEAD + PART * part
    rank = tl.load(piece)
    outputs = tl.load(parts_ptr + 3 * part + 1) * STEP
    if (rank == 0) | (tl.program_id(0) * BLOCK_N >= outputs):
        return
    begin = tl.load(tiles_ptr + tl.program_id(1) * 4 + 1)
    places = begin + tl.arange(0, BLOCK_M)
    valid = places < tl.load(tiles_ptr + tl.program_id(1) * 4 + 2)
    rows = tl.load(order_ptr + places, valid, 0)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = columns < outputs
    units = (buffer - 1).to(tl.int64) * buffer_units + tl.load(piece + 2)
    b_ptr = weights_ptr + units * UNIT
    b_stride = tl.load(parts_ptr + 3 * part + 2) * UNIT
    partial_row = partial_ptr + places.to(tl.int64)[:, None] * ranks + tl.load(piece + 1)
    if rank <= 16:
        acc = _expand_ranks(
            partial_row, b_ptr, valid, inside, columns, rank, splits, split_stride, b_stride, 16, BLOCK_M, BLOCK_N, WIDE
        )
    elif rank <= 32:
        acc = _expand_ranks(
            partial_row, b_ptr, valid, inside, columns, rank, splits, split_stride, b_stride, 32, BLOCK_M, BLOCK_N, WIDE
        )
    else:
        acc = _expand_ranks(
            partial_row, b_ptr, valid, inside, columns, rank, splits, split_stride, b_stride, 64, BLOCK_M, BLOCK_N, WIDE
        )
    y = (
        y_ptr
        + rows.to(tl.int64)[:, None] * (y_steps * STEP)
        + (tl.load(parts_ptr + 3 * part) * STEP + columns)[None, :]
    )
    mask = valid[:, None] & inside[None, :]
    tl.store(y, (tl.load(y, mask, 0.0).to(tl.float32) + acc).to(y_ptr.dtype.element_ty), mask)
