# mypy: ignore-errors
"""The device code of products with packed weights; :mod:`.packed` launches it. Capitals are compile-time constants.

Weights become floats by their bits alone: an integer *or*-ed into the mantissa of 128 (bf16, 4 bits) or 1024 (fp16)
adds to it, and what is to be subtracted goes with the zero point. e4m3 shifted into fp16 is the number over 256, which
the scale makes up for. All of that is exact, and scales are fp32 beside sums in fp32.
"""

import triton
import triton.language as tl


@triton.jit
def _base(KIND: tl.constexpr, WIDTH: tl.constexpr, type: tl.constexpr):
    """What :func:`_floats` adds to integers."""
    if KIND == "e4m3":
        return 0.0
    else:
        if WIDTH == 4 and type == tl.bfloat16:
            return 128.0
        else:
            return 1024.0


@triton.jit
def _floats(words, PLACE: tl.constexpr, KIND: tl.constexpr, WIDTH: tl.constexpr, type: tl.constexpr):
    """A unit's slice at ``PLACE``, as bf16 or fp16 of the same shape as ``words``."""
    pieces = words >> (WIDTH * (PLACE // 2))
    if KIND == "e4m3":
        pieces = ((pieces & 0x00800080) << 8) | ((pieces & 0x007F007F) << 7)
    elif WIDTH == 8:
        pieces = (pieces & 0x00FF00FF) | 0x64006400
    elif type == tl.bfloat16:
        pieces = (pieces & 0x000F000F) | 0x43004300
    else:
        pieces = (pieces & 0x000F000F) | 0x64006400
    half = (pieces >> (16 * (PLACE % 2))).to(tl.int16)
    if KIND == "integers" and WIDTH == 4 and type == tl.bfloat16:
        return half.to(tl.bfloat16, bitcast=True)
    else:
        return half.to(tl.float16, bitcast=True)


@triton.jit
def _zero(zeros_ptr, at, exists, MIDDLE: tl.constexpr, HAS_ZEROS: tl.constexpr):
    if HAS_ZEROS:
        return tl.load(zeros_ptr + at, exists, 0).to(tl.float32)
    else:
        return tl.zeros(at.shape, tl.float32) + MIDDLE


@triton.jit
def _scale(scales_ptr, at, exists, KIND: tl.constexpr):
    scale = tl.load(scales_ptr + at, exists, 0.0).to(tl.float32)
    return scale * 256.0 if KIND == "e4m3" else scale


@triton.jit(do_not_specialize=["rows"])
def multiply(
    x_ptr,
    words_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    out_ptr,
    rows,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    UNITS: tl.constexpr,
    SPLIT_UNITS: tl.constexpr,
    SPLITS: tl.constexpr,
    SLICE: tl.constexpr,
    KIND: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    GROUP_SLICES: tl.constexpr,
    RUN: tl.constexpr,
    SHARING: tl.constexpr,
    MIDDLE: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A tile of outputs times a tile of rows, over one split of the inputs. SPLITS > 1: ``out`` is [splits, rows, out]
    fp32 for :func:`sum_splits`.

    Weights are the first factor: from Hopper on tensor cores take it from registers, where it is unpacked.
    """
    SLICES: tl.constexpr = 32 // WIDTH
    type: tl.constexpr = x_ptr.dtype.element_ty
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    column = tl.arange(0, SLICE)
    exists = outputs < OUTPUTS
    valid = (row < rows)[:, None]
    x_row = x_ptr + row.to(tl.int64)[:, None] * INPUTS
    scale_row = outputs // SHARING
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for unit in range(split * SPLIT_UNITS, tl.minimum((split + 1) * SPLIT_UNITS, UNITS)):
        words_at = (outputs + unit * OUTPUTS)[:, None] * SLICE + column[None, :]
        words = tl.load(words_ptr + words_at, exists[:, None], 0)
        for run in tl.static_range(SLICES // RUN):
            # The padding of the last unit may be beyond the last group.
            group = tl.minimum((unit * SLICES + run * RUN) // GROUP_SLICES, GROUPS - 1)
            zero = _zero(zeros_ptr, group * SCALE_ROWS + scale_row, exists, MIDDLE, HAS_ZEROS)
            zero = (zero + _base(KIND, WIDTH, type))[:, None]
            part = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            for each in tl.static_range(RUN):
                inputs = (unit * SLICES + run * RUN + each) * SLICE + column
                if INPUTS % (SLICES * SLICE) == 0:
                    x = tl.load(x_row + inputs[None, :], valid, 0.0)
                else:
                    x = tl.load(x_row + inputs[None, :], valid & (inputs < INPUTS)[None, :], 0.0)
                weight = _floats(words, run * RUN + each, KIND, WIDTH, type)
                if KIND == "integers":
                    weight -= zero.to(weight.dtype)
                part = tl.dot(weight.to(type), tl.trans(x), part)
            acc += part * _scale(scales_ptr, group * SCALE_ROWS + scale_row, exists, KIND)[:, None]
    store_sums(out_ptr, bias_ptr, acc, outputs, row, rows, split, OUTPUTS, SPLITS, BIASED)


@triton.jit
def store_sums(
    out_ptr,
    bias_ptr,
    acc,
    outputs,
    row,
    rows,
    split,
    OUTPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    BIASED: tl.constexpr,
):
    """A tile [outputs, rows] in fp32: with the bias to [rows, out], or as a part of one of several splits, which
    :func:`sum_splits` adds up, to [splits, rows, out]."""
    exists = outputs < OUTPUTS
    inside = exists[:, None] & (row < rows)[None, :]
    at = row.to(tl.int64)[None, :] * OUTPUTS + outputs[:, None]
    if SPLITS > 1:
        tl.store(out_ptr + (split * rows).to(tl.int64) * OUTPUTS + at, acc, inside)
    else:
        if BIASED:
            acc += tl.load(bias_ptr + outputs, exists, 0.0).to(tl.float32)[:, None]
        tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["rows"])
def sum_splits(
    parts_ptr,
    bias_ptr,
    out_ptr,
    rows,
    OUTPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A piece of one row's sum over the splits, in order."""
    outputs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1).to(tl.int64)
    exists = outputs < OUTPUTS
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts_ptr + (split * rows + row) * OUTPUTS + outputs, exists, 0.0)
    if BIASED:
        total += tl.load(bias_ptr + outputs, exists, 0.0).to(tl.float32)
    tl.store(out_ptr + row * OUTPUTS + outputs, total.to(out_ptr.dtype.element_ty), exists)


@triton.jit(do_not_specialize=["first", "last"])
def write_floats(
    words_ptr,
    scales_ptr,
    zeros_ptr,
    out_ptr,
    first,
    last,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    SLICE: tl.constexpr,
    KIND: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    GROUP_SLICES: tl.constexpr,
    SHARING: tl.constexpr,
    MIDDLE: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One unit of the outputs from ``first`` to ``last``, as floats: [last - first, in], each rounded once."""
    SLICES: tl.constexpr = 32 // WIDTH
    type: tl.constexpr = out_ptr.dtype.element_ty
    unit = tl.program_id(1)
    outputs = first + tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.arange(0, SLICE)
    exists = outputs < last
    scale_row = outputs // SHARING
    words_at = (outputs + unit * OUTPUTS)[:, None] * SLICE + column[None, :]
    words = tl.load(words_ptr + words_at, exists[:, None], 0)
    out_row = out_ptr + (outputs - first).to(tl.int64)[:, None] * INPUTS
    for place in tl.static_range(SLICES):
        group = tl.minimum((unit * SLICES + place) // GROUP_SLICES, GROUPS - 1)
        weight = _floats(words, place, KIND, WIDTH, type).to(tl.float32)
        if KIND == "integers":
            zero = _zero(zeros_ptr, group * SCALE_ROWS + scale_row, exists, MIDDLE, HAS_ZEROS)
            weight -= (zero + _base(KIND, WIDTH, type))[:, None]
        weight *= _scale(scales_ptr, group * SCALE_ROWS + scale_row, exists, KIND)[:, None]
        inputs = (unit * SLICES + place) * SLICE + column
        tl.store(out_row + inputs[None, :], weight.to(type), exists[:, None] & (inputs < INPUTS)[None, :])
