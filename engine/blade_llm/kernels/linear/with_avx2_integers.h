// Quantised weights by few rows with AVX2, in integers, without making the weights bf16 first.
//
// A row of activations becomes 16-bit integers with one scale, and products are summed exactly in 32 bits. Weights
// and levels are bytes, 128 too large: sums start from -128 times the sum of their activations.
#pragma once

#include <algorithm>

#include "unpack_avx2.h"

namespace blade {

constexpr int INTEGER_ROWS = 16;    // more are multiplied in bf16
constexpr int INTEGER_STEPS = 8;    // 256 products of 255 * 32767 fit a sum

// Groups in chunks of at most INTEGER_STEPS steps, of which the sums are exact.
struct Chunks {
    int64_t steps, group_steps, of_group, count;

    template <Kind KIND>
    static Chunks of(const Weight& weight) {
        const int64_t steps = weight.steps(), group_steps = Panel<KIND>(weight, 0).group_steps();
        const int64_t of_group = (group_steps + INTEGER_STEPS - 1) / INTEGER_STEPS;
        const int64_t last = steps % group_steps;
        return {steps, group_steps, of_group,
                steps / group_steps * of_group + (last + INTEGER_STEPS - 1) / INTEGER_STEPS};
    }

    int64_t end_of_group(int64_t step) const { return std::min(steps, (step / group_steps + 1) * group_steps); }
    int64_t end(int64_t step) const { return std::min(step + INTEGER_STEPS, end_of_group(step)); }
};

struct IntegerInputs {
    int16_t* values;   // [rows, width]
    int32_t* offsets;  // [rows, chunks]: what the sums of a chunk start from
    int64_t width;
    Chunks chunks;
    float scale[INTEGER_ROWS];
};

// 8 values times `inverse`, as 16-bit integers; vectors of bytes want the middle two of four inputs exchanged.
template <Kind KIND>
BLADE_AVX2 static inline __m128i integers(const bf16* x, __m256 inverse) {
    const __m256i wide = _mm256_cvtps_epi32(_mm256_mul_ps(load_bf16x8(x), inverse));
    __m128i values = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    if constexpr (!has_nibbles(KIND)) values = _mm_shufflehi_epi16(_mm_shufflelo_epi16(values, 0xd8), 0xd8);
    return values;
}

BLADE_AVX2 static inline float largest_magnitude(const bf16* x, int64_t count, bool& finite) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_setzero_si256();  // bits of magnitudes are ordered as the magnitudes are
    for (int64_t at = 0; at < count; at += 8)
        most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(load_bf16x8(x + at)), magnitude));
    alignas(32) uint32_t bits[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(bits), most);
    const uint32_t peak = *std::max_element(bits, bits + 8);
    finite = peak < 0x7f800000u;
    float value;
    memcpy(&value, &peak, sizeof value);
    return value;
}

template <Kind KIND>
BLADE_AVX2 static void to_integers(const Job& job, Buffers& buffers, IntegerInputs& inputs) {
    const int64_t steps = job.weight->steps();
    inputs.width = steps * STEP;
    inputs.chunks = Chunks::of<KIND>(*job.weight);
    const int64_t bytes = job.rows * inputs.width * sizeof(int16_t);
    inputs.values = reinterpret_cast<int16_t*>(buffers.bytes.get(bytes + job.rows * inputs.chunks.count * sizeof(int32_t)));
    int32_t* offset = inputs.offsets = reinterpret_cast<int32_t*>(inputs.values + job.rows * inputs.width);
    const __m128i ones = _mm_set1_epi16(1);
    for (int64_t row = 0; row < job.rows; ++row) {
        const bf16* x = job.x + row * job.x_stride;
        bool finite;
        const float peak = largest_magnitude(x, inputs.width, finite);
        inputs.scale[row] = finite ? peak / 32767.0f / level_units(KIND) : __builtin_nanf("");
        const __m256 inverse = _mm256_set1_ps(finite && peak > 0.0f ? 32767.0f / peak : 0.0f);
        int16_t* to = inputs.values + row * inputs.width;
        for (int64_t step = 0, end; step < steps; step = end) {
            end = inputs.chunks.end(step);
            __m128i sum = _mm_setzero_si128();
            for (int64_t at = step * STEP; at < end * STEP; at += 8) {
                const __m128i values = integers<KIND>(x + at, inverse);
                _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at), values);
                sum = _mm_add_epi32(sum, _mm_madd_epi16(values, ones));
            }
            alignas(16) int32_t parts[4];
            _mm_store_si128(reinterpret_cast<__m128i*>(parts), sum);
            *offset++ = -128 * (parts[0] + parts[1] + parts[2] + parts[3]);
        }
    }
}

BLADE_AVX2 static inline __m256i add_pairs(__m256i sum, __m256i weights, const int16_t* pair) {
    int both;
    memcpy(&both, pair, sizeof both);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(weights, _mm256_set1_epi32(both)));
}

// The sums of one record. ``sums[i][v]``: row i, outputs 8 v to 8 v + 7.
template <int ROWS>
BLADE_AVX2 static inline void add_bytes_avx2(
    __m256i (&sums)[ROWS][4], const int16_t* x, int64_t x_stride, const uint8_t* record) {
    const __m256i bytes = _mm256_set1_epi16(255);
#pragma GCC unroll 2
    for (int vector = 0; vector < 8; ++vector)
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
            const uint8_t* at = record + v / 2 * 512 + vector * 64 + v % 2 * 32;
            const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
            const __m256i even = _mm256_and_si256(values, bytes), odd = _mm256_srli_epi16(values, 8);
#pragma GCC unroll 4
            for (int i = 0; i < ROWS; ++i) {
                sums[i][v] = add_pairs(sums[i][v], even, x + i * x_stride + vector * 4);
                sums[i][v] = add_pairs(sums[i][v], odd, x + i * x_stride + vector * 4 + 2);
            }
        }
}

template <int ROWS>
BLADE_AVX2 static inline void add_nibbles_avx2(
    __m256i (&sums)[ROWS][4], const int16_t* x, int64_t x_stride, const uint8_t* record, __m256i levels) {
    for (int vector = 0; vector < 4; ++vector)
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
            const uint8_t* at = record + v / 2 * 256 + vector * 64 + v % 2 * 32;
            __m256i rows[4];
            level_rows(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), levels, rows);
#pragma GCC unroll 4
            for (int pair = 0; pair < 4; ++pair)
#pragma GCC unroll 4
                for (int i = 0; i < ROWS; ++i)
                    sums[i][v] = add_pairs(sums[i][v], rows[pair], x + i * x_stride + vector * 8 + pair * 2);
        }
}

// ROWS rows by one panel.
template <Kind KIND, int ROWS>
BLADE_AVX2 static void integer_panel(
    const Job& job, const IntegerInputs& inputs, int64_t row, int64_t panel, __m256i levels, const GroupForm& form) {
    __m256 totals[ROWS][4];
#pragma GCC unroll 2
    for (auto& total : totals)
#pragma GCC unroll 4
        for (auto& vector : total) vector = _mm256_setzero_ps();
    const Panel<KIND> records(*job.weight, panel);
    const Chunks chunks = inputs.chunks;
    const int64_t distance = prefetch_distance(KIND), group_bytes = records.group_bytes();
    const uint8_t* record = records.record(0);
    const int16_t* x = inputs.values + row * inputs.width;
    const int32_t* offsets = inputs.offsets + row * chunks.count;
    for (int64_t step = 0; step < chunks.steps;) {
        const int64_t group_end = chunks.end_of_group(step);
        const uint8_t* scales = record + (group_end - step) * value_bytes(KIND);
        for (; step < group_end; ++offsets) {
            __m256i sums[ROWS][4];
#pragma GCC unroll 2
            for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
                for (auto& sum : sums[i]) sum = _mm256_set1_epi32(offsets[i * chunks.count]);
            const int64_t end = std::min(step + INTEGER_STEPS, group_end);
            for (; step < end; ++step, record += value_bytes(KIND), x += STEP) {
                for (int at = 0; at < value_bytes(KIND); at += 64) _mm_prefetch(record + distance + at, _MM_HINT_T0);
                if constexpr (has_nibbles(KIND)) add_nibbles_avx2<ROWS>(sums, x, inputs.width, record, levels);
                else add_bytes_avx2<ROWS>(sums, x, inputs.width, record);
            }
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) {
                const __m256 scale = KIND == Kind::int8 ? _mm256_set1_ps(1.0f) : form.scale_avx2<KIND>(scales, v * 8);
                const bool has_zeros = is_affine(KIND) && form.has_zeros;
                const __m256 zero = has_zeros ? form.zero_avx2(scales, v * 8) : _mm256_setzero_ps();
#pragma GCC unroll 2
                for (int i = 0; i < ROWS; ++i) {
                    __m256 sum = _mm256_cvtepi32_ps(sums[i][v]);
                    if (is_affine(KIND)) {  // an offset is -128 times the sum of the inputs
                        const __m256 negated = _mm256_set1_ps(static_cast<float>(offsets[i * chunks.count]) / 128.0f);
                        sum = _mm256_fmadd_ps(zero, negated, sum);
                    }
                    totals[i][v] = _mm256_fmadd_ps(sum, scale, totals[i][v]);
                }
            }
        }
        for (int64_t at = 0; at < group_bytes; at += 64) _mm_prefetch(record + distance + at, _MM_HINT_T0);
        record += group_bytes;
    }
    const EpilogueAvx2 epilogue(*job.weight, panel);
#pragma GCC unroll 2
    for (int i = 0; i < ROWS; ++i) {
        const __m256 scale = _mm256_set1_ps(inputs.scale[row + i]);
        bf16* y = job.y + (row + i) * job.y_stride + panel * PANEL;
#pragma GCC unroll 2
        for (int tile = 0; tile < 2; ++tile)
            epilogue.store(
                y, tile, _mm256_mul_ps(totals[i][tile * 2], scale),
                _mm256_mul_ps(totals[i][tile * 2 + 1], scale));
    }
}

// At most INTEGER_ROWS rows.
template <Kind KIND>
BLADE_AVX2 static void multiply_integers_avx2(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    IntegerInputs inputs;
    to_integers<KIND>(job, buffers, inputs);
    const __m256i levels = _mm256_broadcastsi128_si256(level_bytes<KIND>(*job.weight));
    const GroupForm form(*job.weight);
    for (int64_t panel = first; panel < last; ++panel) {
        int64_t row = 0;
        for (; row + 2 <= job.rows; row += 2) integer_panel<KIND, 2>(job, inputs, row, panel, levels, form);
        if (row < job.rows) integer_panel<KIND, 1>(job, inputs, row, panel, levels, form);
    }
}

}  // namespace blade
