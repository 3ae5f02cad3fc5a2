// Rows of the quantised KV cache as bf16, with AVX-512.
#pragma once

#include "kv_rows.h"

namespace blade {

// Sixteen numbers of a row from element `d` on, as they are before scale and zero.
template <KvMethod M>
BLADE_AVX512 static inline __attribute__((always_inline)) __m512 numbers16(const uint8_t* row, int64_t d, int64_t half) {
    constexpr bool four = M == KvMethod::int4 || M == KvMethod::int4_affine;
    const bool high = four && d >= half;
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + (high ? d - half : d)));
    if constexpr (M == KvMethod::fp8_e4m3 || M == KvMethod::fp8_e5m2) {
        __m256i wide = _mm256_cvtepu8_epi16(bytes);
        if constexpr (M == KvMethod::fp8_e5m2) return _mm512_cvtph_ps(_mm256_slli_epi16(wide, 8));
        // As fp16 with the mantissa and exponent in their places, which makes it 256 times smaller. A number that is
        // none has a scale that is none.
        const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(wide, 8), _mm256_set1_epi16(-0x8000));
        const __m256i rest = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(0x3f80));
        return _mm512_cvtph_ps(_mm256_or_si256(sign, rest));
    }
    if constexpr (M == KvMethod::int8)
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_xor_si128(bytes, _mm_set1_epi8(-128))));
    __m512i wide = _mm512_cvtepu8_epi32(bytes);
    if constexpr (four) wide = high ? _mm512_srli_epi32(wide, 4) : _mm512_and_si512(wide, _mm512_set1_epi32(15));
    if constexpr (M == KvMethod::int4) wide = _mm512_sub_epi32(wide, _mm512_set1_epi32(8));
    return _mm512_cvtepi32_ps(wide);
}

template <KvMethod M>
BLADE_AVX512_BF16 static inline void unpack_rows_as(const KvRows& rows, const void* const* from, int count,
                                                    int64_t head_dim, bf16* out) {
    const int64_t size = head_dim / rows.groups, half = head_dim / 2, numbers = rows.numbers(head_dim);
    for (int i = 0; i < count; i++, out += head_dim) {
        const uint8_t* row = static_cast<const uint8_t*>(from[i]);
        for (int64_t group = 0; group < rows.groups; group++) {
            const __m512 scale = _mm512_set1_ps((M == KvMethod::fp8_e4m3 ? 256.0f : 1.0f) *
                                                half_to_float(row + numbers + 2 * group));
            const __m512 zero = _mm512_set1_ps(rows.affine() ? half_to_float(row + numbers + 2 * (rows.groups + group))
                                                             : 0.0f);
            for (int64_t d = group * size; d < (group + 1) * size; d += 16) {
                const __m512 value = _mm512_fmadd_ps(numbers16<M>(row, d, half), scale, zero);
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + d), (__m256i)_mm512_cvtneps_pbh(value));
            }
        }
    }
}

// `count` rows, one after another. head_dim is a multiple of 16.
BLADE_AVX512_BF16 static void unpack_rows(const KvRows& rows, const void* const* from, int count, int64_t head_dim,
                                          bf16* out) {
    if (head_dim / rows.groups % 16 || (rows.four_bits() && head_dim % 32)) {
        for (int i = 0; i < count; i++, out += head_dim)
            unpack_row(rows, static_cast<const uint8_t*>(from[i]), head_dim, out);
        return;
    }
    switch (rows.method) {
        case KvMethod::int8: return unpack_rows_as<KvMethod::int8>(rows, from, count, head_dim, out);
        case KvMethod::int4: return unpack_rows_as<KvMethod::int4>(rows, from, count, head_dim, out);
        case KvMethod::int8_affine: return unpack_rows_as<KvMethod::int8_affine>(rows, from, count, head_dim, out);
        case KvMethod::int4_affine: return unpack_rows_as<KvMethod::int4_affine>(rows, from, count, head_dim, out);
        case KvMethod::fp8_e4m3: return unpack_rows_as<KvMethod::fp8_e4m3>(rows, from, count, head_dim, out);
        default: return unpack_rows_as<KvMethod::fp8_e5m2>(rows, from, count, head_dim, out);
    }
}

}  // namespace blade
