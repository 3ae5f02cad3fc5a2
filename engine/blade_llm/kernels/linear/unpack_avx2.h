// For CPUs without AVX512-BF16: quantised weights to bf16 tiles, and fp32 sums to a row of outputs.
#pragma once

#include "groups.h"

namespace blade {

// Rows 0 to 3 of 32 bytes of nibbles, as 16-bit levels, 128 too large.
BLADE_AVX2 static inline void level_rows(__m256i nibbles, __m256i levels, __m256i (&rows)[4]) {
    const __m256i nibble = _mm256_set1_epi8(15), byte = _mm256_set1_epi16(255);
    const __m256i even = _mm256_shuffle_epi8(levels, _mm256_and_si256(nibbles, nibble));
    const __m256i odd = _mm256_shuffle_epi8(levels, _mm256_and_si256(_mm256_srli_epi16(nibbles, 4), nibble));
    rows[0] = _mm256_and_si256(even, byte);
    rows[1] = _mm256_and_si256(odd, byte);
    rows[2] = _mm256_srli_epi16(even, 8);
    rows[3] = _mm256_srli_epi16(odd, 8);
}

BLADE_AVX2 static inline __m256 without_offset(__m256i values) {
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(values, _mm256_set1_epi32(128)));
}

// Two vectors of fp32 that are exact in bf16, side by side: half a row of a tile.
BLADE_AVX2 static inline void store_pairs(bf16* to, __m256i even, __m256i odd) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa));
}

// Integers, which count from the middle, as weights: int8 stays without its scale, which is applied to the sums. The
// others' scales change within a sum, so they are multiplied in, and the products will be rounded.
template <Kind KIND>
BLADE_AVX2 static inline __m256i scaled(__m256i values, __m256 scale, __m256 offset) {
    const __m256 integers = without_offset(values);
    if constexpr (KIND == Kind::int8) return _mm256_castps_si256(integers);
    const __m256 product =
        KIND == Kind::int4 ? _mm256_mul_ps(integers, scale) : _mm256_fmadd_ps(integers, scale, offset);
    return _mm256_add_epi32(_mm256_castps_si256(product), _mm256_set1_epi32(0x8000));
}

template <Kind KIND>
BLADE_AVX2 static inline void unpack_bytes_avx2(
    const uint8_t* record, const uint8_t* scales, bf16* tiles, const GroupForm& form) {
    const __m256i byte = _mm256_set1_epi32(255);
    for (int half = 0; half < 4; ++half) {  // a tile's outputs 0-7, then 8-15
        __m256 scale = _mm256_setzero_ps(), offset = scale;
        if constexpr (KIND != Kind::int8) {
            scale = form.scale_avx2<KIND>(scales, half * 8);
            offset = form.offset_avx2<KIND>(scales, half * 8, scale);
        }
        const uint8_t* from = record + half / 2 * 512 + half % 2 * 32;
        bf16* to = tiles + half / 2 * TILE_WORDS + half % 2 * 16;
        for (int vector = 0; vector < 8; ++vector, from += 64, to += 64) {
            __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
            __m256i inputs[4];
            for (int i = 0; i < 4; ++i, values = _mm256_srli_epi32(values, 8))
                inputs[i] = scaled<KIND>(_mm256_and_si256(values, byte), scale, offset);
            store_pairs(to, inputs[0], inputs[1]);
            store_pairs(to + 32, inputs[2], inputs[3]);
        }
    }
}

// Eight e4m3 in words as fp32.
BLADE_AVX2 static inline __m256 float8_avx2(__m256i bytes) {
    const __m256i magnitude = _mm256_and_si256(bytes, _mm256_set1_epi32(127));
    const __m256i shifted = _mm256_slli_epi32(magnitude, 20), exponent = _mm256_set1_epi32(120 << 23);
    const __m256 normal = _mm256_castsi256_ps(_mm256_add_epi32(shifted, exponent));
    const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-9f));
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), magnitude);
    __m256 value = _mm256_blendv_ps(normal, small, _mm256_castsi256_ps(is_small));
    const __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(127));
    value = _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_and_si256(is_nan, _mm256_set1_epi32(0x7fc00000))));
    const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(bytes, 7), 31);
    return _mm256_or_ps(value, _mm256_castsi256_ps(sign));
}

// float8: exact without groups; with them, products with their scales, rounded to bf16.
BLADE_AVX2 static inline void unpack_float8_avx2(const uint8_t* record, const uint8_t* scales, bf16* tiles) {
    const __m256i byte = _mm256_set1_epi32(255);
    const __m256i by_output = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15,
                                               0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    for (int half = 0; half < 4; ++half) {
        const float* of_group = reinterpret_cast<const float*>(scales) + half * 8;
        const __m256 scale = scales ? _mm256_loadu_ps(of_group) : _mm256_set1_ps(1.0f);
        const __m256i round = _mm256_set1_epi32(scales ? 0x8000 : 0);
        const uint8_t* from = record + half / 2 * 512 + half % 2 * 32;
        bf16* to = tiles + half / 2 * TILE_WORDS + half % 2 * 16;
        for (int vector = 0; vector < 8; ++vector, from += 64, to += 64) {
            __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
            values = _mm256_shuffle_epi8(values, by_output);
            __m256i inputs[4];
            for (int i = 0; i < 4; ++i, values = _mm256_srli_epi32(values, 8)) {
                const __m256 product = _mm256_mul_ps(float8_avx2(_mm256_and_si256(values, byte)), scale);
                inputs[i] = _mm256_add_epi32(_mm256_castps_si256(product), round);
            }
            store_pairs(to, inputs[0], inputs[1]);
            store_pairs(to + 32, inputs[2], inputs[3]);
        }
    }
}

template <Kind KIND>
BLADE_AVX2 static inline void unpack_nibbles_avx2(
    const uint8_t* record, const uint8_t* scales, bf16* tiles, __m256i levels, const GroupForm& form) {
    const __m256i word = _mm256_set1_epi32(0xffff);
    for (int half = 0; half < 4; ++half) {
        const __m256 unit = _mm256_set1_ps(1.0f / level_units(KIND));
        const __m256 stored = form.scale_avx2<KIND>(scales, half * 8), scale = _mm256_mul_ps(stored, unit);
        const __m256 offset = form.offset_avx2<KIND>(scales, half * 8, scale);
        const uint8_t* from = record + half / 2 * 256 + half % 2 * 32;
        bf16* to = tiles + half / 2 * TILE_WORDS + half % 2 * 16;
        for (int vector = 0; vector < 4; ++vector, from += 64) {
            __m256i rows[4];
            level_rows(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), levels, rows);
            for (int i = 0; i < 4; ++i, to += 32)
                store_pairs(
                    to, scaled<KIND>(_mm256_and_si256(rows[i], word), scale, offset),
                    scaled<KIND>(_mm256_srli_epi32(rows[i], 16), scale, offset));
        }
    }
}

// The record of ``step`` to two bf16 tiles.
template <Kind KIND>
BLADE_AVX2 static inline void unpack_avx2(
    const Panel<KIND>& panel, int64_t step, bf16* tiles, __m256i levels, const GroupForm& form) {
    const uint8_t *record = panel.record(step), *scales = panel.scales(step);
    if constexpr (KIND == Kind::float8) unpack_float8_avx2(record, scales, tiles);
    else if constexpr (has_nibbles(KIND)) unpack_nibbles_avx2<KIND>(record, scales, tiles, levels, form);
    else unpack_bytes_avx2<KIND>(record, scales, tiles, form);
}

// Eight fp32 values rounded to bf16, in the upper halves; NaN stays NaN.
BLADE_AVX2 static inline __m256i rounded_bf16(__m256 values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(nearest, quiet, nan);
}

struct EpilogueAvx2 {
    const float *scale, *bias;  // of the panel's outputs, or null
    int64_t outputs;            // that exist

    EpilogueAvx2(const Weight& weight, int64_t panel)
        : scale(weight.scales_outputs() ? weight.scales + panel * PANEL : nullptr),
          bias(weight.bias ? weight.bias + panel * PANEL : nullptr),
          outputs(weight.outputs - panel * PANEL) {}

    // The outputs of one tile; ``y``: where the panel's first one goes.
    BLADE_AVX2 inline void store(bf16* y, int tile, __m256 first, __m256 second) const {
        const __m256i low = _mm256_srli_epi32(rounded_bf16(finished(first, tile * 16)), 16);
        const __m256i high = _mm256_srli_epi32(rounded_bf16(finished(second, tile * 16 + 8)), 16);
        const __m256i row = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
        const int64_t count = outputs - tile * 16;
        bf16* to = y + tile * 16;
        if (count >= 16) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), row);
        } else if (count > 0) {
            bf16 values[16];
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(values), row);
            memcpy(to, values, count * sizeof(bf16));
        }
    }

private:
    BLADE_AVX2 inline __m256 finished(__m256 sums, int at) const {
        if (scale) sums = _mm256_mul_ps(sums, _mm256_loadu_ps(scale + at));
        return bias ? _mm256_add_ps(sums, _mm256_loadu_ps(bias + at)) : sums;
    }
};

}  // namespace blade
