# mypy: ignore-errors
# ruff: noqa: SIM109 (device code has no tuples to look into)
"""Device code for rows of the quantised KV cache (:mod:`blade_llm.kernels.kv_rows`): METHOD is a number of
``METHOD_NUMBERS``, SIZE the elements of a group, DIM those of a head."""

import triton
import triton.language as tl

INT8, INT4, INT8_AFFINE, INT4_AFFINE, FP8_E4M3, FP8_E5M2 = (tl.constexpr(number) for number in range(1, 7))


@triton.jit
def load_half(pointers, inside):
    """fp16 numbers at any byte."""
    low = tl.load(pointers, mask=inside, other=0).to(tl.int16)
    high = tl.load(pointers + 1, mask=inside, other=0).to(tl.int16)
    return (low | (high << 8)).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def store_half(pointers, values, inside):
    bits = values.to(tl.float16).to(tl.int16, bitcast=True)
    tl.store(pointers, (bits & 255).to(tl.uint8), inside)
    tl.store(pointers + 1, ((bits >> 8) & 255).to(tl.uint8), inside)


@triton.jit
def load_rows(cache, at, dims, inside, METHOD: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr):
    """Elements ``dims`` ([dims] int32) of rows that begin at ``at`` ([rows] int64), in fp32, 0 where not ``inside``."""
    FOUR: tl.constexpr = METHOD == INT4 or METHOD == INT4_AFFINE
    AFFINE: tl.constexpr = METHOD == INT8_AFFINE or METHOD == INT4_AFFINE
    PACKED: tl.constexpr = DIM // 2 if FOUR else DIM
    GROUPS: tl.constexpr = DIM // SIZE
    row = cache + at[:, None]
    if FOUR:
        high = (dims >= PACKED)[None, :]
        byte = tl.load(row + tl.where(high, dims[None, :] - PACKED, dims[None, :]), mask=inside, other=0)
        number = tl.where(high, byte >> 4, byte & 15).to(tl.float32)
    else:
        byte = tl.load(row + dims[None, :], mask=inside, other=0)
        number = byte.to(tl.float32)
    if METHOD == FP8_E4M3:  # the bits of an fp16 that is 256 times smaller
        wide = byte.to(tl.int16)
        bits = ((wide & 128) << 8) | ((wide & 127) << 7)
        number = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    if METHOD == FP8_E5M2:
        number = (byte.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    if METHOD == INT8:
        number -= 128.0
    if METHOD == INT4:
        number -= 8.0
    group = PACKED + 2 * (dims // SIZE)[None, :]
    number = number * load_half(row + group, inside)
    if AFFINE:
        number += load_half(row + group + 2 * GROUPS, inside)
    return tl.where(inside, number, 0.0)


@triton.jit
def _round_even(x):
    """To an integer, to even between two, as far as 2^22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def fp8_bits(x, E5M2: tl.constexpr):
    """The nearest fp8 number of fp32 ones of at most the largest."""
    MANTISSA: tl.constexpr = 2 if E5M2 else 3
    BIAS: tl.constexpr = 15 if E5M2 else 7
    SHIFT: tl.constexpr = 23 - MANTISSA
    UNIT: tl.constexpr = 2.0 ** (24 - BIAS - MANTISSA)  # its last bit is the least fp8 number
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    small = (tl.abs(x) + UNIT).to(tl.int32, bitcast=True) - ((127 + 24 - BIAS - MANTISSA) << 23)
    rounded = (size - ((127 - BIAS) << 23) + (1 << (SHIFT - 1)) - 1 + ((size >> SHIFT) & 1)) >> SHIFT
    number = tl.where(size < ((128 - BIAS) << 23), small, rounded)
    return (number | ((bits >> 24) & 128)) & 255


@triton.jit
def quantized(x, least, largest, most, METHOD: tl.constexpr):
    """Numbers ([..], int32) of fp32 elements ``x``, and their scale and zero, whose group reaches from ``least`` to
    ``largest``, at most ``most`` in size."""
    FOUR: tl.constexpr = METHOD == INT4 or METHOD == INT4_AFFINE
    AFFINE: tl.constexpr = METHOD == INT8_AFFINE or METHOD == INT4_AFFINE
    LEVELS: tl.constexpr = 15.0 if FOUR else 255.0
    zero = least * 0.0
    if AFFINE:
        zero = least.to(tl.float16).to(tl.float32)
        scale = tl.div_rn(largest - zero, LEVELS)
    elif METHOD == INT8:
        scale = tl.div_rn(most, 127.0)
    elif METHOD == INT4:
        scale = tl.where(largest > -least, largest, least) / -8.0
    else:
        scale = tl.div_rn(most, 448.0)
    scale = scale.to(tl.float16).to(tl.float32)
    divided = tl.div_rn(x - zero, tl.where(scale == 0.0, 1.0, scale))
    if METHOD == FP8_E4M3:
        return fp8_bits(tl.minimum(tl.maximum(divided, -448.0), 448.0), False), scale, zero
    elif METHOD == FP8_E5M2:
        return fp8_bits(tl.minimum(tl.maximum(divided, -448.0), 448.0), True), scale, zero
    elif AFFINE:
        return tl.minimum(tl.maximum(_round_even(divided), 0.0), LEVELS).to(tl.int32), scale, zero
    elif METHOD == INT8:
        return tl.minimum(tl.maximum(_round_even(divided), -127.0), 127.0).to(tl.int32) + 128, scale, zero
    else:
        return tl.minimum(tl.maximum(_round_even(divided), -8.0), 7.0).to(tl.int32) + 8, scale, zero


@triton.jit(do_not_specialize_on_alignment=["slots"])
def pack_rows(
    x,  # [tokens, KV_HEADS, DIM]
    cache,
    slots,
    METHOD: tl.constexpr,
    GROUPS: tl.constexpr,
    DIM: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of two, at least DIM / 2
):
    """One row of each program, both halves of a head side by side as 4-bit numbers lie."""
    FOUR: tl.constexpr = METHOD == INT4 or METHOD == INT4_AFFINE
    AFFINE: tl.constexpr = METHOD == INT8_AFFINE or METHOD == INT4_AFFINE
    HALF: tl.constexpr = DIM // 2
    SIZE: tl.constexpr = DIM // GROUPS
    PACKED: tl.constexpr = HALF if FOUR else DIM
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, BLOCK)
    inside = dims < HALF
    source = x + (token * KV_HEADS + head) * DIM + dims
    low = tl.load(source, inside, 0.0).to(tl.float32)
    high = tl.load(source + HALF, inside, 0.0).to(tl.float32)
    low_least, low_largest, low_most = low, low, low
    high_least, high_largest, high_most = high, high, high
    for group in tl.static_range(GROUPS):
        in_low = inside & (dims // SIZE == group)
        in_high = inside & ((dims + HALF) // SIZE == group)
        broken = tl.sum(tl.where(in_low, low * 0.0, 0.0) + tl.where(in_high, high * 0.0, 0.0), 0)
        least = tl.minimum(
            tl.min(tl.where(in_low, low, float("inf")), 0), tl.min(tl.where(in_high, high, float("inf")), 0)
        )
        largest = tl.maximum(
            tl.max(tl.where(in_low, low, float("-inf")), 0), tl.max(tl.where(in_high, high, float("-inf")), 0)
        )
        most = tl.maximum(tl.abs(largest), tl.abs(least)) + broken
        least, largest = least + broken, largest + broken
        low_least, high_least = tl.where(in_low, least, low_least), tl.where(in_high, least, high_least)
        low_largest, high_largest = tl.where(in_low, largest, low_largest), tl.where(in_high, largest, high_largest)
        low_most, high_most = tl.where(in_low, most, low_most), tl.where(in_high, most, high_most)
    low_numbers, low_scale, low_zero = quantized(low, low_least, low_largest, low_most, METHOD)
    high_numbers, high_scale, high_zero = quantized(high, high_least, high_largest, high_most, METHOD)
    row = cache + (tl.load(slots + token).to(tl.int64) * KV_HEADS + head) * ROW_BYTES
    if FOUR:
        tl.store(row + dims, (low_numbers | (high_numbers << 4)).to(tl.uint8), inside)
    else:
        tl.store(row + dims, low_numbers.to(tl.uint8), inside)
        tl.store(row + HALF + dims, high_numbers.to(tl.uint8), inside)
    first_low = inside & (dims % SIZE == 0)
    first_high = inside & ((dims + HALF) % SIZE == 0)
    at_low, at_high = row + PACKED + 2 * (dims // SIZE), row + PACKED + 2 * ((dims + HALF) // SIZE)
    store_half(at_low, low_scale, first_low)
    store_half(at_high, high_scale, first_high)
    if AFFINE:
        store_half(at_low + 2 * GROUPS, low_zero, first_low)
        store_half(at_high + 2 * GROUPS, high_zero, first_high)
