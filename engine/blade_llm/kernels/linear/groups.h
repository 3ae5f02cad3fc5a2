// What stands for the integers of a weight: levels, and scales and zero points of the groups of a panel.
#pragma once

#include "layout.h"

namespace blade {

// The 16 levels of nibbles as bytes, 128 too large: the table of a byte permutation. Nothing where there are none.
template <Kind KIND>
BLADE_AVX2 static inline __m128i level_bytes(const Weight& weight) {
    if constexpr (!has_nibbles(KIND)) return _mm_setzero_si128();
    alignas(16) uint8_t bytes[16];
    for (int i = 0; i < 16; ++i) bytes[i] = static_cast<uint8_t>(to_float(weight.levels[i]) * level_units(KIND) + 128.0f);
    return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
}

// How they are stored, known at run time; int4's are known before.
struct GroupForm {
    ScaleType type;
    bool has_zeros;
    int64_t zeros_at;  // bytes from the first scale

    explicit GroupForm(const Weight& weight)
        : type(weight.scale_type), has_zeros(weight.has_zeros), zeros_at(weight.scale_bytes()) {}

    // Of the 16 outputs of a tile.
    template <Kind KIND>
    BLADE_AVX512_BF16 inline __m512 scale(const uint8_t* group, int tile) const {
        const bf16* half = reinterpret_cast<const bf16*>(group) + tile * 16;
        if (KIND == Kind::int4 || type == ScaleType::bf16) return load_bf16(half);
        if (type == ScaleType::fp16) return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(half)));
        return _mm512_loadu_ps(group + tile * 64);
    }

    // Zero points above the middle.
    BLADE_AVX512_BF16 inline __m512 zero(const uint8_t* group, int tile) const {
        const __m128i* from = reinterpret_cast<const __m128i*>(group + zeros_at) + tile;
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from)));
    }

    // What scaled integers, which count from the middle, are above the weights, with the sign of a summand.
    template <Kind KIND>
    BLADE_AVX512_BF16 inline __m512 offset(const uint8_t* group, int tile, __m512 scale) const {
        if (KIND == Kind::int4 || !has_zeros) return _mm512_setzero_ps();
        return _mm512_fnmadd_ps(zero(group, tile), scale, _mm512_setzero_ps());
    }

    // The same of 8 outputs from ``output`` on, with AVX2.
    template <Kind KIND>
    BLADE_AVX2 inline __m256 scale_avx2(const uint8_t* group, int output) const {
        const bf16* half = reinterpret_cast<const bf16*>(group) + output;
        if (KIND == Kind::int4 || type == ScaleType::bf16) return load_bf16x8(half);
        if (type == ScaleType::fp16) return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half)));
        return _mm256_loadu_ps(reinterpret_cast<const float*>(group) + output);
    }

    BLADE_AVX2 inline __m256 zero_avx2(const uint8_t* group, int output) const {
        const __m128i* from = reinterpret_cast<const __m128i*>(group + zeros_at + output);
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from)));
    }

    template <Kind KIND>
    BLADE_AVX2 inline __m256 offset_avx2(const uint8_t* group, int output, __m256 scale) const {
        if (KIND == Kind::int4 || !has_zeros) return _mm256_setzero_ps();
        return _mm256_fnmadd_ps(zero_avx2(group, output), scale, _mm256_setzero_ps());
    }
};

}  // namespace blade
