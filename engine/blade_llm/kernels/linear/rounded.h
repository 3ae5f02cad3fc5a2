// Activations rounded to 8 bits: to integers for w8a8, to e4m3, kept as bf16, for float8.
//
// A row, or a group of its inputs, has one scale: that with which its largest magnitude is the largest value that there is
// (127.5, of which compressed-tensors makes 127 or -128, and 448), or that of the checkpoint. Values are divided by it in
// fp32 and rounded to the nearest, ties to even, as the public packages do. The scale of what is not finite is NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "layout.h"

namespace blade {

constexpr float INT8_STEPS = 127.5f, FP8_MOST = 448.0f;
constexpr int64_t ROUND_AHEAD = 1024;  // inputs fetched ahead of those whose magnitudes are compared
constexpr float LEAST_SCALE = 0x1p-23f;  // of a row of zeros: any will do, this is compressed-tensors'

// The scale of values of which the largest magnitude is ``peak``, or NaN.
static inline float scale_of(float peak, float given, float most) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (given > 0.0f) return std::isnan(peak) ? nan : given;
    if (!(peak <= std::numeric_limits<float>::max())) return nan;
    const float scale = peak / most;
    return scale > 0.0f ? scale : LEAST_SCALE;
}

// The largest magnitude of ``count`` values, a multiple of 16; NaN where one is.
BLADE_AVX512_BF16 static inline float peak_avx512(const bf16* x, int64_t count) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i most = _mm512_setzero_si512();  // bits of magnitudes are ordered as the magnitudes are
    for (int64_t i = 0; i < count; i += 16) {
        if (i % 32 == 0) _mm_prefetch(x + i + ROUND_AHEAD, _MM_HINT_T0);
        most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(load_bf16(x + i)), magnitude));
    }
    const int32_t bits = _mm512_reduce_max_epi32(most);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// To integers; returns their sum. Dividing takes four times as long as the rest, so the reciprocal is multiplied by, and
// only where that could round another way, values are divided.
BLADE_AVX512_BF16 static inline int32_t round_bytes_avx512(const bf16* x, int64_t count, float scale, int8_t* to) {
    const bool usual = scale > 0x1p-100f && scale < 0x1p100f;  // its reciprocal is as exact as a float can be
    const __m512 near_tie = _mm512_set1_ps(usual ? 0.4999f : -1.0f);
    const __m512 divisor = _mm512_set1_ps(scale), inverse = _mm512_set1_ps(1.0f / scale);
    const __m512 most = _mm512_set1_ps(127.0f), least = _mm512_set1_ps(-128.0f);
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < count; i += 16) {
        const __m512 values = load_bf16(x + i);
        __m512 scaled = _mm512_mul_ps(values, inverse);
        scaled = _mm512_max_ps(_mm512_min_ps(scaled, _mm512_set1_ps(200.0f)), _mm512_set1_ps(-200.0f));
        const __m512 off = _mm512_sub_ps(scaled, _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        if (_mm512_cmp_ps_mask(_mm512_abs_ps(off), near_tie, _CMP_NLT_UQ))
            scaled = _mm512_div_ps(values, divisor);
        const __m512i integers = _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(scaled, most), least));
        sum = _mm512_add_epi32(sum, integers);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm512_cvtepi32_epi8(integers));
    }
    return _mm512_reduce_add_epi32(sum);
}

// To e4m3: three bits behind the point for what is at least 2^-6, multiples of 2^-9 below.
BLADE_AVX512_BF16 static inline void round_floats_avx512(const bf16* x, int64_t count, float scale, bf16* to) {
    const __m512 divisor = _mm512_set1_ps(scale), most = _mm512_set1_ps(FP8_MOST), least = _mm512_set1_ps(-FP8_MOST);
    const __m512 shift = _mm512_set1_ps(0x1.8p14f);  // a unit in the last place of it is 2^-9
    for (int64_t i = 0; i < count; i += 16) {
        const __m512 values = _mm512_max_ps(_mm512_min_ps(_mm512_div_ps(load_bf16(x + i), divisor), most), least);
        const __m512i bits = _mm512_castps_si512(values);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
        const __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7ffff), odd);
        const __m512i normal = _mm512_and_si512(_mm512_add_epi32(bits, half), _mm512_set1_epi32(~0xfffff));
        const __m512i small = _mm512_castps_si512(_mm512_sub_ps(_mm512_add_ps(values, shift), shift));
        const __mmask16 is_small = _mm512_cmp_ps_mask(_mm512_abs_ps(values), _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ);
        const __m512i rounded = _mm512_mask_mov_epi32(normal, is_small, small);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
    }
}

BLADE_AVX2 static inline float peak_avx2(const bf16* x, int64_t count) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_setzero_si256();
    for (int64_t i = 0; i < count; i += 8)
        most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(load_bf16x8(x + i)), magnitude));
    alignas(32) int32_t bits[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(bits), most);
    const int32_t peak = *std::max_element(bits, bits + 8);
    float value;
    memcpy(&value, &peak, sizeof value);
    return value;
}

BLADE_AVX2 static inline int32_t round_bytes_avx2(const bf16* x, int64_t count, float scale, int8_t* to) {
    const __m256 divisor = _mm256_set1_ps(scale);
    const __m256 most = _mm256_set1_ps(127.0f), least = _mm256_set1_ps(-128.0f);
    alignas(32) int32_t values[8];
    int32_t sum = 0;
    for (int64_t i = 0; i < count; i += 8) {
        const __m256 scaled = _mm256_div_ps(load_bf16x8(x + i), divisor);
        const __m256 within = _mm256_max_ps(_mm256_min_ps(scaled, most), least);
        _mm256_store_si256(reinterpret_cast<__m256i*>(values), _mm256_cvtps_epi32(within));
        for (int j = 0; j < 8; ++j) sum += to[i + j] = static_cast<int8_t>(values[j]);
    }
    return sum;
}

BLADE_AVX2 static inline void round_floats_avx2(const bf16* x, int64_t count, float scale, bf16* to) {
    const __m256 divisor = _mm256_set1_ps(scale), most = _mm256_set1_ps(FP8_MOST), least = _mm256_set1_ps(-FP8_MOST);
    const __m256 shift = _mm256_set1_ps(0x1.8p14f), sign = _mm256_set1_ps(-0.0f);
    for (int64_t i = 0; i < count; i += 8) {
        const __m256 values = _mm256_max_ps(_mm256_min_ps(_mm256_div_ps(load_bf16x8(x + i), divisor), most), least);
        const __m256i bits = _mm256_castps_si256(values);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
        const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7ffff), odd);
        const __m256i normal = _mm256_and_si256(_mm256_add_epi32(bits, half), _mm256_set1_epi32(~0xfffff));
        const __m256 small = _mm256_sub_ps(_mm256_add_ps(values, shift), shift);
        const __m256 is_small = _mm256_cmp_ps(_mm256_andnot_ps(sign, values), _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ);
        const __m256i rounded = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(normal), small, is_small));
        const __m256i words = _mm256_srli_epi32(rounded, 16);
        const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), packed);
    }
}

// How one row is rounded. ``width``: inputs with padding, as ``x`` has them.
struct RowRounding {
    const Weight& weight;
    int64_t width, group;  // inputs that share a scale

    explicit RowRounding(const Weight& of)
        : weight(of), width(of.steps() * STEP), group(of.input_steps ? of.input_steps * STEP : width) {}

    int64_t groups() const { return (width + group - 1) / group; }

    BLADE_AVX512_BF16 void avx512(const bf16* x, int8_t* bytes, int32_t* offset, bf16* floats, float* scales) const {
        for (int64_t at = 0; at < width; at += group, ++scales) {
            const int64_t count = std::min(group, width - at);
            if (weight.rounding == Rounding::int8) {
                *scales = scale_of(peak_avx512(x + at, count), weight.input_scale, INT8_STEPS);
                *offset = -128 * round_bytes_avx512(x + at, count, *scales, bytes);
            } else {
                *scales = scale_of(peak_avx512(x + at, count), weight.input_scale, FP8_MOST);
                round_floats_avx512(x + at, count, *scales, floats + at);
            }
        }
    }

    BLADE_AVX2 void avx2(const bf16* x, int8_t* bytes, int32_t* offset, bf16* floats, float* scales) const {
        for (int64_t at = 0; at < width; at += group, ++scales) {
            const int64_t count = std::min(group, width - at);
            if (weight.rounding == Rounding::int8) {
                *scales = scale_of(peak_avx2(x + at, count), weight.input_scale, INT8_STEPS);
                *offset = -128 * round_bytes_avx2(x + at, count, *scales, bytes);
            } else {
                *scales = scale_of(peak_avx2(x + at, count), weight.input_scale, FP8_MOST);
                round_floats_avx2(x + at, count, *scales, floats + at);
            }
        }
    }
};

// ``job`` with the activations that its weight wants, once for all panels, in ``buffers`` of the calling thread.
static Job round_inputs(const Job& job, Buffers& buffers) {
    constexpr int64_t few = 1 << 16;  // inputs: done before a second thread is awake
    const RowRounding rounding(*job.weight);
    const bool integers = job.weight->rounding == Rounding::int8, avx512 = isa() >= Isa::avx512_bf16;
    const int64_t rows = job.rows, groups = rounding.groups();
    const int64_t stride = integers ? (rounding.width + W8A8_INPUTS - 1) / W8A8_INPUTS * W8A8_INPUTS : rounding.width;
    int8_t* storage = buffers.rounded.get(rows * stride * (integers ? 1 : sizeof(bf16)));
    bf16* floats = reinterpret_cast<bf16*>(storage);
    int32_t* offsets = buffers.offsets.get(rows * sizeof(int32_t));
    float* scales = buffers.row_scales.get(rows * groups * sizeof(float));
#pragma omp parallel for schedule(static) if (rows * stride > few)
    for (int64_t row = 0; row < rows; ++row) {
        const bf16* x = job.x + row * job.x_stride;
        int8_t* bytes = storage + row * stride;
        if (avx512)
            rounding.avx512(x, bytes, offsets + row, floats + row * stride, scales + row * groups);
        else
            rounding.avx2(x, bytes, offsets + row, floats + row * stride, scales + row * groups);
        if (integers) memset(bytes + rounding.width, 0, stride - rounding.width);
    }
    Job rounded = job;
    rounded.x = integers ? nullptr : floats;
    rounded.x_stride = stride;
    rounded.bytes = integers ? storage : nullptr;
    rounded.offsets = offsets;
    rounded.row_scales = scales;
    rounded.row_groups = groups;
    return rounded;
}

}  // namespace blade
