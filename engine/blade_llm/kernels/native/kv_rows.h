// Rows of the quantised KV cache, packed as kernels/kv_rows.py says: numbers, then an fp16 scale of each group, then, of
// affine methods, an fp16 zero of each. What is packed equals torch's, bit for bit.
#pragma once

#include <algorithm>
#include <cmath>

#include "bf16.h"
#include "simd.h"

namespace blade {

// The numbers are METHOD_NUMBERS in blade_llm/kv_quant.py.
enum class KvMethod : int64_t { none, int8, int4, int8_affine, int4_affine, fp8_e4m3, fp8_e5m2 };

// How rows are packed.
struct KvRows {
    KvMethod method;
    int64_t groups, bytes;  // of a row

    bool packed() const { return method != KvMethod::none; }
    bool four_bits() const { return method == KvMethod::int4 || method == KvMethod::int4_affine; }
    bool affine() const { return method == KvMethod::int8_affine || method == KvMethod::int4_affine; }
    bool floating() const { return method >= KvMethod::fp8_e4m3; }
    // Where the scales begin.
    int64_t numbers(int64_t head_dim) const { return four_bits() ? head_dim / 2 : head_dim; }
};

// How the rows of a layer's caches are packed: both are, or none.
struct CacheRows {
    KvRows keys, values;

    bool packed() const { return keys.packed(); }
};

BLADE_INLINE float half_to_float(const uint8_t* from) {
    uint16_t half;
    memcpy(&half, from, sizeof half);
    const uint32_t sign = uint32_t(half & 0x8000) << 16, rest = half & 0x7fff;
    uint32_t bits = (rest << 13) + (112u << 23);
    if (rest >= 0x7c00) bits += 112u << 23;  // infinities and NaN
    float value;
    if (rest < 0x400) {
        value = static_cast<float>(rest) * 0x1p-24f;
        memcpy(&bits, &value, sizeof bits);
    }
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Stores the fp16 nearest to a value, to even between two; returns what was stored.
BLADE_INLINE float store_half(uint8_t* to, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    uint32_t half;
    if (size > 0x7f800000) {
        half = 0x7e00;
    } else if (size >= 0x477ff000) {  // 65520, halfway to what would be next
        half = 0x7c00;
    } else if (size < 0x38800000) {  // below the normal numbers: adding 0.5 rounds to a multiple of 2^-24
        float small;
        memcpy(&small, &size, sizeof small);
        small += 0.5f;
        memcpy(&half, &small, sizeof half);
        half -= 0x3f000000;
    } else {
        half = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    }
    const uint16_t stored = static_cast<uint16_t>(half | sign);
    memcpy(to, &stored, sizeof stored);
    return half_to_float(to);
}

// An fp8 number of any kind; the bits are those of torch's float8_e4m3fn and float8_e5m2.
BLADE_INLINE float fp8_to_float(uint8_t byte, bool e5m2) {
    uint8_t half[2] = {0, byte};
    if (e5m2) return half_to_float(half);
    if ((byte & 0x7f) == 0x7f) return NAN;
    const uint16_t shifted = static_cast<uint16_t>((byte & 0x80) << 8 | (byte & 0x7f) << 7);
    memcpy(half, &shifted, sizeof half);
    return half_to_float(half) * 256.0f;
}

// The nearest fp8 number; `value` is at most the largest.
BLADE_INLINE uint8_t float_to_fp8(float value, bool e5m2) {
    const uint32_t mantissa = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, shift = 23 - mantissa;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80);
    const uint32_t size = bits & 0x7fffffff;
    if (size > 0x7f800000) return sign | 0x7f;
    if (size < (128 - bias) << 23) {  // below the normal numbers
        const uint32_t exponent = 127 + 1 - bias - mantissa + 23;  // its unit is the least fp8 number
        const uint32_t magic = exponent << 23;
        float small, unit;
        memcpy(&small, &size, sizeof small), memcpy(&unit, &magic, sizeof unit);
        small += unit;
        memcpy(&bits, &small, sizeof bits);
        return static_cast<uint8_t>(sign | (bits - magic));
    }
    const uint32_t rounded = size - ((127 - bias) << 23) + (1u << (shift - 1)) - 1 + (size >> shift & 1);
    return static_cast<uint8_t>(sign | rounded >> shift);
}

// Rounds to an integer, to even between two, from -2^22 to 2^22.
BLADE_INLINE float round_even(float value) { return (value + 12582912.0f) - 12582912.0f; }

BLADE_INLINE float bounded(float value, float low, float high) {
    return value != value ? value : std::min(std::max(value, low), high);
}

// Packs one row of `head_dim` elements.
template <class T>
BLADE_INLINE void pack_row(const KvRows& rows, const T* x, int64_t head_dim, uint8_t* out) {
    const int64_t size = head_dim / rows.groups, half = head_dim / 2;
    uint8_t* scales = out + rows.numbers(head_dim);
    uint8_t* zeros = scales + 2 * rows.groups;
    for (int64_t group = 0; group < rows.groups; group++) {
        const int64_t begin = group * size, end = begin + size;
        float low = INFINITY, high = -INFINITY;
        bool broken = false;
        for (int64_t d = begin; d < end; d++) {
            const float value = to_float(x[d]);
            low = value < low ? value : low, high = value > high ? value : high;
            broken |= value != value;
        }
        const float most = std::max(std::fabs(high), std::fabs(low));
        float zero = 0, least = 0, largest = 0, scale = 0, offset = 0;
        switch (rows.method) {
            case KvMethod::int8: scale = most / 127, least = -127, largest = 127, offset = 128; break;
            case KvMethod::int4: scale = (high > -low ? high : low) / -8, least = -8, largest = 7, offset = 8; break;
            case KvMethod::int8_affine:
            case KvMethod::int4_affine:
                largest = rows.four_bits() ? 15.0f : 255.0f;
                zero = store_half(zeros + 2 * group, low);
                scale = (high - zero) / largest;
                break;
            default: largest = 448, least = -448, scale = most / 448;  // fp8
        }
        scale = store_half(scales + 2 * group, broken ? NAN : scale);  // which all of the group becomes
        if (scale == 0) scale = 1;
        if (rows.floating()) {
            const bool e5m2 = rows.method == KvMethod::fp8_e5m2;
            for (int64_t d = begin; d < end; d++)
                out[d] = float_to_fp8(bounded(to_float(x[d]) / scale, least, largest), e5m2);
            continue;
        }
        for (int64_t d = begin; d < end; d++) {
            const float number = bounded(round_even((to_float(x[d]) - zero) / scale), least, largest) + offset;
            const uint8_t byte = static_cast<uint8_t>(number == number ? static_cast<int32_t>(number) : 0);
            if (!rows.four_bits()) out[d] = byte;
            else if (d < half) out[d] = byte;  // the high half follows: groups are in order
            else out[d - half] = static_cast<uint8_t>((out[d - half] & 15) | byte << 4);
        }
    }
}

// One row as numbers of type T.
template <class T>
BLADE_INLINE void unpack_row(const KvRows& rows, const uint8_t* from, int64_t head_dim, T* out) {
    const int64_t size = head_dim / rows.groups, half = head_dim / 2;
    const uint8_t* scales = from + rows.numbers(head_dim);
    const uint8_t* zeros = scales + 2 * rows.groups;
    for (int64_t group = 0; group < rows.groups; group++) {
        const float scale = half_to_float(scales + 2 * group);
        const float zero = rows.affine() ? half_to_float(zeros + 2 * group) : 0.0f;
        const float offset = rows.method == KvMethod::int4 ? -8.0f : rows.method == KvMethod::int8 ? -128.0f : 0.0f;
        for (int64_t d = group * size; d < (group + 1) * size; d++) {
            float number;
            if (rows.floating()) number = fp8_to_float(from[d], rows.method == KvMethod::fp8_e5m2);
            else if (rows.four_bits()) number = static_cast<float>(d < half ? from[d] & 15 : from[d - half] >> 4);
            else number = from[d];
            store_one(out + d, (number + offset) * scale + zero);
        }
    }
}

}  // namespace blade
