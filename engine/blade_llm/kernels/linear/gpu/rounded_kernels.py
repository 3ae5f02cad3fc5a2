# mypy: ignore-errors
"""The device code of products in which activations are rounded to 8 bits as well. Capitals are compile-time constants.

:mod:`.rounding`, :mod:`.int8` and :mod:`.float8` launch it.
"""

import triton
import triton.language as tl

from blade_llm.kernels.linear.gpu.kernels import store_sums


@triton.jit
def round_group(
    x_ptr,
    scale_ptr,
    values_ptr,
    scales_ptr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    STATIC: tl.constexpr,
    KIND: tl.constexpr,
    MOST: tl.constexpr,
    LEAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A group of one row's inputs: its largest magnitude, then its values."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    inside = tl.arange(0, BLOCK)
    x_at, values_at = x_ptr + row * INPUTS + group * GROUP, values_ptr + row * INPUTS + group * GROUP
    left = INPUTS - group * GROUP
    if STATIC:
        scale = tl.load(scale_ptr)
    else:
        largest = tl.zeros([BLOCK], tl.float32)
        for start in range(0, GROUP, BLOCK):
            column = start + inside
            x = tl.load(x_at + column, (column < GROUP) & (column < left), 0.0).to(tl.float32)
            largest = tl.maximum(largest, tl.where(x == x, tl.abs(x), float("inf")))
        scale = tl.div_rn(tl.max(largest, 0), MOST)
        scale = tl.where(scale == 0.0, LEAST, scale)
    broken = tl.zeros([BLOCK], tl.int32)
    for start in range(0, GROUP, BLOCK):
        column = start + inside
        exists = (column < GROUP) & (column < left)
        x = tl.load(x_at + column, exists, 0.0).to(tl.float32)
        broken |= (x != x).to(tl.int32)
        # A NaN's value counts for nothing: the scale says it.
        value = tl.where(x == x, tl.div_rn(x, scale), 0.0)
        if KIND == "int8":
            value = tl.minimum(tl.maximum(value, -128.0), 127.0)
            value = (value + 12582912.0) - 12582912.0  # 1.5 * 2**23, which leaves no bits for a fraction
            tl.store(values_at + column, value.to(tl.int8), exists)
        else:
            value = tl.minimum(tl.maximum(value, -MOST), MOST)
            tl.store(values_at + column, value.to(tl.float8e4nv), exists)
    good = (tl.max(broken, 0) == 0) & (scale < float("inf"))
    tl.store(scales_ptr + row * tl.num_programs(1) + group, tl.where(good, scale, float("nan")))


@triton.jit(do_not_specialize=["rows"])
def multiply_int8(
    x_ptr,
    weight_ptr,
    out_ptr,
    rows,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    SPLIT_STEPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A tile of outputs times a tile of rows over one split of the inputs, to [splits, rows, out] int32."""
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    column = tl.arange(0, BLOCK_K)
    weight_row = weight_ptr + outputs.to(tl.int64)[:, None] * INPUTS
    x_row = x_ptr + row.to(tl.int64)[:, None] * INPUTS
    exists, valid = (outputs < OUTPUTS)[:, None], (row < rows)[:, None]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.int32)
    last = tl.minimum((split + 1) * SPLIT_STEPS * BLOCK_K, INPUTS)
    for start in range(split * SPLIT_STEPS * BLOCK_K, last, BLOCK_K):
        inputs = (start + column)[None, :]
        if INPUTS % BLOCK_K == 0:
            weight = tl.load(weight_row + inputs, exists, 0)
            x = tl.load(x_row + inputs, valid, 0)
        else:
            weight = tl.load(weight_row + inputs, exists & (inputs < INPUTS), 0)
            x = tl.load(x_row + inputs, valid & (inputs < INPUTS), 0)
        acc = tl.dot(weight, tl.trans(x), acc, out_dtype=tl.int32)
    at = (split * rows + row).to(tl.int64)[None, :] * OUTPUTS + outputs[:, None]
    tl.store(out_ptr + at, acc, exists & (row < rows)[None, :])


@triton.jit(do_not_specialize=["rows"])
def scale_sums(
    sums_ptr,
    x_scales_ptr,
    weight_scales_ptr,
    bias_ptr,
    out_ptr,
    rows,
    OUTPUTS: tl.constexpr,
    ALL_OUTPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A piece of one row of the result, which has ALL_OUTPUTS, of integers' sums over the splits."""
    outputs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1).to(tl.int64)
    exists = outputs < OUTPUTS
    total = tl.zeros([BLOCK], tl.int32)
    for split in tl.static_range(SPLITS):
        total += tl.load(sums_ptr + (split * rows + row) * OUTPUTS + outputs, exists, 0)
    scale = tl.load(weight_scales_ptr + outputs, exists, 0.0).to(tl.float32) * tl.load(x_scales_ptr + row)
    result = total.to(tl.float32) * scale
    if BIASED:
        result += tl.load(bias_ptr + outputs, exists, 0.0).to(tl.float32)
    tl.store(out_ptr + row * ALL_OUTPUTS + outputs, result.to(out_ptr.dtype.element_ty), exists)


@triton.jit(do_not_specialize=["rows"])
def multiply_float8(
    x_ptr,
    x_scales_ptr,
    weight_ptr,
    weight_scales_ptr,
    bias_ptr,
    out_ptr,
    rows,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    SPLIT_STEPS: tl.constexpr,
    SPLITS: tl.constexpr,
    X_GROUPS: tl.constexpr,
    X_GROUP: tl.constexpr,
    WEIGHT_GROUPS: tl.constexpr,
    WEIGHT_GROUP: tl.constexpr,
    SHARING: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """As :func:`multiply_int8`, with e4m3 and scales of each BLOCK_K inputs. SPLITS > 1: ``out`` is [splits, rows, out]
    fp32, for ``sum_splits``.

    Tensor cores add e4m3 up in fewer bits than fp32 has: their sums are taken over after each BLOCK_K inputs
    (DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, 3.3.2).
    """
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    column = tl.arange(0, BLOCK_K)
    weight_row = weight_ptr + outputs.to(tl.int64)[:, None] * INPUTS
    x_row = x_ptr + row.to(tl.int64)[:, None] * INPUTS
    exists, valid = outputs < OUTPUTS, row < rows
    weight_scales_row = weight_scales_ptr + (outputs // SHARING) * WEIGHT_GROUPS
    x_scales_row = x_scales_ptr + row.to(tl.int64) * X_GROUPS
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    last = tl.minimum((split + 1) * SPLIT_STEPS * BLOCK_K, INPUTS)
    for start in range(split * SPLIT_STEPS * BLOCK_K, last, BLOCK_K):
        inputs = (start + column)[None, :]
        if INPUTS % BLOCK_K == 0:
            weight = tl.load(weight_row + inputs, exists[:, None], 0.0)
            x = tl.load(x_row + inputs, valid[:, None], 0.0)
        else:
            weight = tl.load(weight_row + inputs, exists[:, None] & (inputs < INPUTS), 0.0)
            x = tl.load(x_row + inputs, valid[:, None] & (inputs < INPUTS), 0.0)
        part = tl.dot(weight, tl.trans(x))
        weight_scale = tl.load(weight_scales_row + start // WEIGHT_GROUP, exists, 0.0).to(tl.float32)
        x_scale = tl.load(x_scales_row + start // X_GROUP, valid, 0.0)
        acc += part * (weight_scale[:, None] * x_scale[None, :])
    store_sums(out_ptr, bias_ptr, acc, outputs, row, rows, split, OUTPUTS, SPLITS, BIASED)
