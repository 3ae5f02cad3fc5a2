// Activations as pairs of signed bytes, for kernels that multiply quantised weights as integers.
//
// A row of activations becomes 16-bit integers with one scale: its largest value has 15 bits, seven more than in bf16, so
// what is lost of the others is less than what bf16 has already cost that one. Each integer is split into two signed
// bytes, high * 256 + low, and each half is multiplied by the weights exactly, in 32 bits.
#pragma once

#include <algorithm>

#include "layout.h"

namespace blade {

constexpr int INTEGER_BLOCK = 32;      // rows that are split at a time
constexpr int INTEGER_INPUTS = 65536;  // more could overflow a sum: 255 * 128 each

struct Halves {
    int8_t* high;  // [rows, width]
    int8_t* low;
    float scale[INTEGER_BLOCK];
    int32_t high_sum[INTEGER_BLOCK], low_sum[INTEGER_BLOCK];
    int64_t width;
};

// The order of eight inputs whose weights are nibbles of a word: those of the low nibbles, then those of the high ones.
BLADE_AVX512_BF16 static inline __m128i in_order_of_nibbles(__m128i bytes) {
    return _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
}

template <Kind KIND = Kind::int8>
BLADE_AVX512_BF16 static void split_inputs(const Job& job, int8_t* storage, Halves& inputs) {
    constexpr float most = 127 * 256 + 127;
    inputs.width = job.weight->steps() * STEP;
    inputs.high = storage;
    inputs.low = storage + job.rows * inputs.width;
    for (int64_t row = 0; row < job.rows; ++row) {
        const bf16* x = job.x + row * job.x_stride;
        __m512 largest = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < inputs.width; i += 16) {
            __m512 values = load_bf16(x + i);
            largest = _mm512_max_ps(largest, _mm512_abs_ps(values));
            sum = _mm512_add_ps(sum, _mm512_mul_ps(values, _mm512_setzero_ps()));  // NaN if a value is no number
        }
        const float peak = _mm512_reduce_max_ps(largest);
        inputs.scale[row] = peak / most + _mm512_reduce_add_ps(sum);
        const __m512 inverse = _mm512_set1_ps(peak > 0.0f ? most / peak : 0.0f);
        __m512i high_sum = _mm512_setzero_si512(), low_sum = _mm512_setzero_si512();
        for (int64_t i = 0; i < inputs.width; i += 16) {
            __m512i integers = _mm512_cvtps_epi32(_mm512_mul_ps(load_bf16(x + i), inverse));
            __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(integers, 24), 24);
            __m512i high = _mm512_srai_epi32(_mm512_sub_epi32(integers, low), 8);
            high_sum = _mm512_add_epi32(high_sum, high);
            low_sum = _mm512_add_epi32(low_sum, low);
            __m128i upper = _mm512_cvtepi32_epi8(high), lower = _mm512_cvtepi32_epi8(low);
            if constexpr (has_nibbles(KIND)) {
                upper = in_order_of_nibbles(upper);
                lower = in_order_of_nibbles(lower);
            }
            _mm_storeu_si128(reinterpret_cast<__m128i*>(inputs.high + row * inputs.width + i), upper);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(inputs.low + row * inputs.width + i), lower);
        }
        inputs.high_sum[row] = _mm512_reduce_add_epi32(high_sum);
        inputs.low_sum[row] = _mm512_reduce_add_epi32(low_sum);
    }
}

}  // namespace blade
