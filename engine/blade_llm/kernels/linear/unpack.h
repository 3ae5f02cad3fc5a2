// Quantised weights back to bf16 tiles. int8 stays without its scale, which is applied to the sums; the others' scales
// change within a sum, so they are multiplied in, and the products rounded.
#pragma once

#include <cmath>
#include <limits>

#include "groups.h"

namespace blade {

// bf16 of what bytes 0..127 stand for, upper and lower bytes, as two vectors each: the tables of a byte permutation.
struct ByteTables {
    __m512i high[2], low[2];
    __m512i rows[2];  // where a row's bytes are among the low and high bytes of four inputs
};

// The value of an e4m3 without its sign. 127 is NaN.
static inline float e4m3(int magnitude) {
    const int exponent = magnitude >> 3, fraction = magnitude & 7;
    if (magnitude == 127) return std::numeric_limits<float>::quiet_NaN();
    return exponent ? ldexpf(static_cast<float>(8 + fraction), exponent - 10) : ldexpf(static_cast<float>(fraction), -9);
}

// ``kind``: int8, or float8, all of whose values are bf16.
BLADE_AVX512_BF16 static inline ByteTables byte_tables(Kind kind) {
    alignas(64) uint8_t high[128], low[128];
    for (int value = 0; value < 128; ++value) {
        bf16 bits = to_bf16(kind == Kind::float8 ? e4m3(value) : static_cast<float>(value));
        high[value] = static_cast<uint8_t>(bits >> 8);
        low[value] = static_cast<uint8_t>(bits);
    }
    alignas(64) uint8_t rows[2][64];
    for (int byte = 0; byte < 64; ++byte) {
        int at = byte / 4 * 4 + byte / 2 % 2 + byte % 2 * 64;  // low and high byte of two inputs
        rows[0][byte] = static_cast<uint8_t>(at);
        rows[1][byte] = static_cast<uint8_t>(at + 2);
    }
    return {{_mm512_load_si512(high), _mm512_load_si512(high + 64)}, {_mm512_load_si512(low), _mm512_load_si512(low + 64)},
            {_mm512_load_si512(rows[0]), _mm512_load_si512(rows[1])}};
}

// 64 int8 values into two rows of a tile.
BLADE_AVX512_BF16 static inline void unpack_int8(__m512i values, const ByteTables& tables, __m512i rows[2]) {
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    values = _mm512_xor_si512(values, sign);
    __m512i magnitude = _mm512_abs_epi8(values);
    __m512i high = _mm512_permutex2var_epi8(tables.high[0], magnitude, tables.high[1]);
    __m512i low = _mm512_permutex2var_epi8(tables.low[0], magnitude, tables.low[1]);
    high = _mm512_ternarylogic_epi32(high, values, sign, 0xf8);  // | values & sign
    rows[0] = _mm512_permutex2var_epi8(low, tables.rows[0], high);
    rows[1] = _mm512_permutex2var_epi8(low, tables.rows[1], high);
}

// 64 e4m3 values into two rows of a tile.
BLADE_AVX512_BF16 static inline void unpack_float8(__m512i values, const ByteTables& tables, __m512i rows[2]) {
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    __m512i high = _mm512_permutex2var_epi8(tables.high[0], values, tables.high[1]);  // looks at seven bits
    const __m512i low = _mm512_permutex2var_epi8(tables.low[0], values, tables.low[1]);
    high = _mm512_ternarylogic_epi32(high, values, sign, 0xf8);  // | values & sign
    rows[0] = _mm512_unpacklo_epi8(low, high);  // a third of the work of a permutation, hence the order of the bytes
    rows[1] = _mm512_unpackhi_epi8(low, high);
}

// What unpacking a weight needs.
struct Tables {
    ByteTables bytes;
    __m512i levels;
    GroupForm form;

    BLADE_AVX512_BF16 explicit Tables(const Weight& weight) : form(weight) {
        if (weight.kind == Kind::int8 || weight.kind == Kind::float8) bytes = byte_tables(weight.kind);
        levels = has_nibbles(weight.kind) ? _mm512_loadu_si512(weight.levels) : _mm512_setzero_si512();
    }
};

// Row i (0..3) of the four rows in a vector of nibbles, as levels. The permutation looks at five bits of a word; the
// fifth belongs to the next nibble, hence the 16 levels twice.
#define BLADE_INT4_ROW(values, i, levels) _mm512_permutexvar_epi16(_mm512_srli_epi16(values, 4 * (i)), levels)

// Two vectors of fp32 as the even and the odd halves of a row, rounded to bf16.
BLADE_AVX512_BF16 static inline __m512i rounded_row(__m512 even, __m512 odd) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000)), half = _mm512_set1_epi32(0x8000);
    __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
    __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
    return _mm512_ternarylogic_epi32(upper, high, low, 0xca);  // upper ? high : low
}

// Levels times their scale, ``offset`` added where the kind has one.
template <Kind KIND>
BLADE_AVX512_BF16 static inline __m512i scale_row(__m512i row, __m512 scale, __m512 offset) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(row, 16));
    const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(row, upper));
    if constexpr (KIND == Kind::int4) return rounded_row(_mm512_mul_ps(even, scale), _mm512_mul_ps(odd, scale));
    return rounded_row(_mm512_fmadd_ps(even, scale, offset), _mm512_fmadd_ps(odd, scale, offset));
}

// Input i (0..3) of the four in each word of a vector of bytes.
BLADE_AVX512_BF16 static inline __m512 byte_input(__m512i values, int i) {
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(values, 8 * i), _mm512_set1_epi32(255)));
}

// The record of ``step`` to two bf16 tiles.
template <Kind KIND>
BLADE_AVX512_BF16 static inline void unpack_record(
    const Panel<KIND>& panel, int64_t step, bf16* tiles, const Tables& tables) {
    const uint8_t *record = panel.record(step), *scales = panel.scales(step);
    if constexpr (KIND == Kind::int8 || KIND == Kind::float8) {  // float8's groups: multiply_float8 scales their sums
        for (int vector = 0; vector < 16; ++vector) {
            __m512i rows[2];
            const __m512i values = _mm512_loadu_si512(record + vector * 64);
            if constexpr (KIND == Kind::int8) unpack_int8(values, tables.bytes, rows);
            else unpack_float8(values, tables.bytes, rows);
            _mm512_store_si512(tiles + vector * 64, rows[0]);
            _mm512_store_si512(tiles + vector * 64 + 32, rows[1]);
        }
    } else if constexpr (has_nibbles(KIND)) {
        for (int tile = 0; tile < 2; ++tile) {
            const __m512 scale = tables.form.scale<KIND>(scales, tile), offset = tables.form.offset<KIND>(scales, tile, scale);
            for (int vector = 0; vector < 4; ++vector, record += 64, tiles += 128) {
                const __m512i values = _mm512_loadu_si512(record);
                _mm512_store_si512(tiles, scale_row<KIND>(BLADE_INT4_ROW(values, 0, tables.levels), scale, offset));
                _mm512_store_si512(tiles + 32, scale_row<KIND>(BLADE_INT4_ROW(values, 1, tables.levels), scale, offset));
                _mm512_store_si512(tiles + 64, scale_row<KIND>(BLADE_INT4_ROW(values, 2, tables.levels), scale, offset));
                _mm512_store_si512(tiles + 96, scale_row<KIND>(BLADE_INT4_ROW(values, 3, tables.levels), scale, offset));
            }
        }
    } else if constexpr (KIND == Kind::affine8) {
        for (int tile = 0; tile < 2; ++tile) {
            const __m512 scale = tables.form.scale<KIND>(scales, tile);
            const __m512 offset = _mm512_fmadd_ps(_mm512_set1_ps(-128.0f), scale, tables.form.offset<KIND>(scales, tile, scale));
            for (int vector = 0; vector < 8; ++vector, record += 64, tiles += 64) {
                const __m512i values = _mm512_loadu_si512(record);
                __m512 inputs[4];
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i) inputs[i] = _mm512_fmadd_ps(byte_input(values, i), scale, offset);
                _mm512_store_si512(tiles, rounded_row(inputs[0], inputs[1]));
                _mm512_store_si512(tiles + 32, rounded_row(inputs[2], inputs[3]));
            }
        }
    }
}

}  // namespace blade
