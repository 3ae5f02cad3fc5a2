// bfloat16 in memory is the upper half of a float; conversion to it rounds to nearest even, as torch does.
#pragma once

#include <cstdint>
#include <cstring>

#include "isa.h"

namespace blade {

using bf16 = uint16_t;

static inline float to_float(bf16 value) {
    uint32_t bits = static_cast<uint32_t>(value) << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static inline bf16 to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16>((bits >> 16) | 0x40);  // NaN stays NaN
    return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// Sixteen at once.
BLADE_AVX512 static inline __m512 widen(__m256i values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

BLADE_AVX512 static inline __m512 load_bf16(const bf16* from) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

BLADE_AVX512 static inline __m512 load_bf16(const bf16* from, __mmask16 mask) {
    return widen(_mm256_maskz_loadu_epi16(mask, from));
}

// For CPUs with AVX-512 but without its bf16 extension; infinities stay, NaN stays NaN.
BLADE_AVX512 static inline __m256i narrow(__m512 values) {
    __m512i bits = _mm512_castps_si512(values);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

BLADE_AVX512 static inline void store_bf16(bf16* to, __m512 values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow(values));
}

BLADE_AVX512 static inline void store_bf16(bf16* to, __m512 values, __mmask16 mask) {
    _mm256_mask_storeu_epi16(to, mask, narrow(values));
}

// Eight at once, on AVX2.
BLADE_AVX2 static inline __m256 load_bf16x8(const bf16* from) {
    __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(values), 16));
}

// The four bytes at ``from`` in every word. In a register, which gcc has to be told: with a broadcast from memory as its
// operand, a dot product takes three times as long on Zen 4.
BLADE_AVX512 static inline __m512i broadcast_word(const void* from) {
    int word;
    memcpy(&word, from, sizeof word);
    __m512i all = _mm512_set1_epi32(word);
    asm("" : "+v"(all));
    return all;
}

}  // namespace blade
