# mypy: ignore-errors
"""The device code of adapters; :mod:`blade_llm.kernels.lora.triton` launches it and explains it. Capitals are
compile-time constants."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit(do_not_specialize=["tiles", "programs"])
def find_tiles(
    starts_ptr, tiles_ptr, work_ptr, tiles, programs,
    BUFFERS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    FIXED: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Which tokens each tile has: as many tiles as each buffer's tokens fill, one buffer after another; and which tile
    and part of the inputs each program of shrink has: as many parts as there are programs for.

    ``starts_ptr``: [buffers + 1] int32, where each buffer's tokens begin in their order.
    """
    buffers = tl.arange(0, PADDED)
    used = (buffers > 0) & (buffers < BUFFERS)
    begins = tl.load(starts_ptr + buffers, used, 0)
    ends = tl.load(starts_ptr + buffers + 1, used, 0)
    filled = (ends - begins + ROWS - 1) // ROWS
    after = tl.cumsum(filled, 0)
    total = tl.sum(filled, 0)
    splits = MOST
    if not FIXED:
        splits = tl.minimum(tl.maximum(programs // tl.maximum(total, 1), 1), MOST)
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    of_tiles = number < tiles
    program = number - tiles
    tile = tl.where(of_tiles, number, program // splits)
    buffer = tl.sum((after[None, :] <= tile[:, None]).to(tl.int32), 1)
    exists = buffer < PADDED
    mine = buffers[None, :] == buffer[:, None]
    first_tile = tl.sum(tl.where(mine, (after - filled)[None, :], 0), 1)
    begin = tl.sum(tl.where(mine, begins[None, :], 0), 1) + (tile - first_tile) * ROWS
    end = tl.minimum(tl.sum(tl.where(mine, ends[None, :], 0), 1), begin + ROWS)
    inside = number < tiles + programs
    record = tl.where(of_tiles, tiles_ptr + number * 8, work_ptr + program * 8)
    tl.store(record, tl.where(exists, buffer, 0), inside)
    tl.store(record + 1, begin, inside)
    tl.store(record + 2, end, inside)
    tl.store(record + 3, tl.where(of_tiles, total, program % splits), inside)
    tl.store(record + 4, tl.zeros([BLOCK], tl.int32) + splits, inside)


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


@triton.jit
def _shrink_one(
    x_row, a_ptr, out_row, first, rank, begin, end, inputs, a_stride, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr
):
    """:func:`_shrink_ranks` of one token, element by element."""
    ranks = first + tl.arange(0, BLOCK_R)
    a_row = a_ptr + ranks[:, None] * a_stride
    acc = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    for start in range(begin, end, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        inside = columns < inputs
        a = tl.load(a_row + columns[None, :], (ranks < rank)[:, None] & inside[None, :], 0.0)
        x = tl.load(x_row + columns, inside, 0.0)
        acc += a.to(tl.float32) * x.to(tl.float32)[None, :]
    tl.store(out_row + ranks, tl.sum(acc, 1), ranks < rank)


@triton.jit(do_not_specialize=["tokens"])
def shrink(
    x_ptr, weights_ptr, entries_ptr, order_ptr, work_ptr, out_ptr, tokens, x_stride, inputs, a_stride, entry_stride,
    buffer_units, ranks,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, WIDE: tl.constexpr,
    FIXED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """A part of the inputs of one tile's ``A x``, of all ranks that its adapter has here: [splits, tokens, ranks] fp32,
    tokens in their order by adapter."""
    if OVERLAP:
        gdc_launch_dependents()
    record = work_ptr + tl.program_id(0) * 8
    buffer = tl.load(record)
    begin = tl.load(record + 1)
    after = tl.load(record + 2)
    split = tl.load(record + 3)
    splits = tl.load(record + 4)
    if buffer > 0:
        entry = entries_ptr + buffer * entry_stride
        rank = tl.load(entry + 1)
        units = (buffer - 1).to(tl.int64) * buffer_units + tl.load(entry)
        a_ptr = weights_ptr + units * UNIT
        length = tl.cdiv(tl.cdiv(inputs, BLOCK_K), splits) * BLOCK_K
        first, last = split * length, tl.minimum(inputs, (split + 1) * length)
        # By the adapter's own rank: one of rank 8 does not compute, nor load, what one of rank 256 does.
        if (after - begin == 1) & (not FIXED):
            row = tl.load(order_ptr + begin).to(tl.int64)
            x_row = x_ptr + row * x_stride
            out_row = out_ptr + (split.to(tl.int64) * tokens + begin) * ranks
            if rank > 16:
                for start in range(0, rank, 32):
                    _shrink_one(x_row, a_ptr, out_row, start, rank, first, last, inputs, a_stride, 32, BLOCK_K)
            elif rank > 0:
                _shrink_one(x_row, a_ptr, out_row, 0, rank, first, last, inputs, a_stride, 16, BLOCK_K)
        elif rank > 0:
            places = begin + tl.arange(0, BLOCK_M)
            valid = places < after
            rows = tl.load(order_ptr + places, valid, 0)
            x_row = x_ptr + rows.to(tl.int64)[:, None] * x_stride
            out_row = out_ptr + (split.to(tl.int64) * tokens + places)[:, None] * ranks
            if rank <= 16:
                _shrink_ranks(
                    x_row, a_ptr, out_row, valid, 0, rank, first, last, inputs, a_stride, 16, BLOCK_M, BLOCK_K, WIDE
                )
            elif rank <= 32:
                _shrink_ranks(
                    x_row, a_ptr, out_row, valid, 0, rank, first, last, inputs, a_stride, 32, BLOCK_M, BLOCK_K, WIDE
                )
            else:
                for start in range(0, rank, 64):
                    _shrink_ranks(
                        x_row, a_ptr, out_row, valid, start, rank, first, last, inputs, a_stride, 64, BLOCK_M, BLOCK_K,
                        WIDE,
                    )  # fmt: skip
    if OVERLAP:
        gdc_wait()  # when this kernel has ended, so have those before it: the next one waits for this one alone


@triton.jit
def _shrunk(partial, mask, splits, split_stride, zeros, AT_ONCE: tl.constexpr):
    """The sum of all splits at ``partial``, always in the same order, ``AT_ONCE`` loads in flight."""
    total = zeros
    for start in range(0, splits, AT_ONCE):
        for offset in tl.static_range(AT_ONCE):
            split = start + offset
            total += tl.load(partial + split.to(tl.int64) * split_stride, mask & (split < splits), 0.0)
    return total


@triton.jit
def _outputs_of(b_ptr, first, rank, columns, inside, b_stride, BLOCK_R: tl.constexpr):
    """``BLOCK_R`` ranks of B, from ``first`` on: [ranks, columns]."""
    ranks = first + tl.arange(0, BLOCK_R)
    return tl.load(b_ptr + ranks[:, None] * b_stride + columns[None, :], (ranks < rank)[:, None] & inside[None, :], 0.0)


@triton.jit
def _expand_ranks(
    partial_row, b, b_ptr, valid, inside, columns, rank, splits, split_stride, b_stride,
    BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """``shrunk @ B`` of all ranks, ``BLOCK_R`` at a time. ``b``: of the first."""
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, rank, BLOCK_R):
        ranks = start + tl.arange(0, BLOCK_R)
        exists = ranks < rank
        mask = valid[:, None] & exists[None, :]
        shrunk = _shrunk(
            partial_row + ranks[None, :], mask, splits, split_stride, tl.zeros([BLOCK_M, BLOCK_R], tl.float32),
            max(1, 2048 // (BLOCK_M * BLOCK_R)),
        )  # fmt: skip
        if WIDE:
            acc = tl.dot(shrunk, b.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(shrunk.to(b.dtype), b, acc)
        b = _outputs_of(b_ptr, start + BLOCK_R, rank, columns, inside, b_stride, BLOCK_R)
    return acc


@triton.jit
def _expand_one(
    partial_row, b, b_ptr, inside, columns, rank, splits, split_stride, b_stride,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """:func:`_expand_ranks` of one token, element by element."""
    acc = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, rank, BLOCK_R):
        ranks = start + tl.arange(0, BLOCK_R)
        shrunk = _shrunk(partial_row + ranks, ranks < rank, splits, split_stride, tl.zeros([BLOCK_R], tl.float32), 8)
        acc += tl.sum(b.to(tl.float32) * shrunk[:, None], 0)
        b = _outputs_of(b_ptr, start + BLOCK_R, rank, columns, inside, b_stride, BLOCK_R)
    return acc


@triton.jit(do_not_specialize=["split_stride", "y_steps", "blocks"])
def expand(
    partial_ptr, weights_ptr, entries_ptr, parts_ptr, order_ptr, tiles_ptr, y_ptr, entry_stride, buffer_units, ranks,
    split_stride, y_steps, blocks,
    UNIT: tl.constexpr, STEP: tl.constexpr, HEAD: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, WIDE: tl.constexpr,
    FIXED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Add to ``BLOCK_N`` outputs of one part what a tile's adapter makes there, for as many such blocks as fall to this
    program. ``blocks``: of all parts."""
    own = tiles_ptr + tl.program_id(0) // blocks * 8
    tiles = tl.load(own + 3)  # every record says how many there are: this one is needed anyway
    splits = tl.load(own + 4)
    for item in range(tl.program_id(0), tiles * blocks, tl.num_programs(0)):
        record, block, part = tiles_ptr + item // blocks * 8, item % blocks, 0
        for _ in tl.static_range(PARTS - 1):  # the part that the block is in
            length = tl.cdiv(tl.load(parts_ptr + 3 * part + 1) * STEP, BLOCK_N)
            later = block >= length
            block = tl.where(later, block - length, block)
            part = tl.where(later, part + 1, part)
        buffer = tl.load(record)
        begin = tl.load(record + 1)
        after = tl.load(record + 2)
        piece = entries_ptr + buffer * entry_stride + HEAD + PART * part
        rank = tl.load(piece)
        columns = block * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = columns < tl.load(parts_ptr + 3 * part + 1) * STEP
        units = (buffer - 1).to(tl.int64) * buffer_units + tl.load(piece + 2)
        b_ptr = weights_ptr + units * UNIT
        b_stride = tl.load(parts_ptr + 3 * part + 2) * UNIT
        partial = partial_ptr + tl.load(piece + 1)
        y_ptrs = y_ptr + tl.load(parts_ptr + 3 * part) * STEP + columns
        # The first of B is on its way before what the kernels before have made is waited for.
        b = _outputs_of(b_ptr, 0, rank, columns, inside, b_stride, BLOCK_R)
        if OVERLAP:
            gdc_wait()
        if (after - begin == 1) & (not FIXED):
            if rank > 0:
                row = tl.load(order_ptr + begin).to(tl.int64)
                y_row = y_ptrs + row * (y_steps * STEP)
                old = tl.load(y_row, inside, 0.0).to(tl.float32)
                partial_row = partial + begin.to(tl.int64) * ranks
                added = _expand_one(
                    partial_row, b, b_ptr, inside, columns, rank, splits, split_stride, b_stride, BLOCK_R, BLOCK_N
                )
                tl.store(y_row, (old + added).to(y_ptr.dtype.element_ty), inside)
        elif rank > 0:
            places = begin + tl.arange(0, BLOCK_M)
            valid = places < after
            rows = tl.load(order_ptr + places, valid, 0)
            partial_row = partial + places.to(tl.int64)[:, None] * ranks
            mask = valid[:, None] & inside[None, :]
            y = y_ptrs[None, :] + rows.to(tl.int64)[:, None] * (y_steps * STEP)
            acc = _expand_ranks(
                partial_row, b, b_ptr, valid, inside, columns, rank, splits, split_stride, b_stride, BLOCK_R, BLOCK_M,
                BLOCK_N, WIDE,
            )  # fmt: skip
            tl.store(y, (tl.load(y, mask, 0.0).to(tl.float32) + acc).to(y_ptr.dtype.element_ty), mask)
    if OVERLAP:
        gdc_wait()
