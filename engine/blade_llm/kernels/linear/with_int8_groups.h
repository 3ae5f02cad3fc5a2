// 8-bit weights with groups by few rows in integers, as with_int8.h does without groups.
//
// The sums of a group start from -128 times the sum of its inputs, which is what bytes of -128 to 127 would give; they
// become fp32 at its end, where zero points are subtracted and the scale is applied.
#pragma once

#include "groups.h"
#include "with_int8.h"

namespace blade {

// Sums of the inputs of a group.
struct InputSums {
    int32_t high, low;  // of their halves, times -128
    float both;
};

// The sum of 32 bytes, times -128.
BLADE_AVX512_BF16 static inline __m256i add_halves(__m256i sum, const int8_t* halves) {
    const __m256i weights = _mm256_set1_epi8(static_cast<char>(0x80));
    return _mm256_sub_epi32(sum, _mm256_dpbusd_epi32(_mm256_setzero_si256(), weights,
                                                     _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves))));
}

BLADE_AVX512_BF16 static inline int32_t sum_lanes(__m256i lanes) {
    return _mm512_reduce_add_epi32(_mm512_zextsi256_si512(lanes));
}

// [rows, groups]
BLADE_AVX512_BF16 static void sum_input_groups(const Job& job, const Int8Inputs& inputs, InputSums* to) {
    const int64_t group = job.weight->group_steps * STEP;
    for (int64_t row = 0; row < job.rows; ++row)
        for (int64_t begin = 0; begin < inputs.width; begin += group, ++to) {
            __m256i high = _mm256_setzero_si256(), low = _mm256_setzero_si256();
            for (int64_t i = begin; i < std::min(inputs.width, begin + group); i += STEP) {
                high = add_halves(high, inputs.high + row * inputs.width + i);
                low = add_halves(low, inputs.low + row * inputs.width + i);
            }
            to->high = sum_lanes(high);
            to->low = sum_lanes(low);
            to->both = (static_cast<float>(to->high) * 256.0f + static_cast<float>(to->low)) / -128.0f;
        }
}

// ROWS rows by one panel. ``input_sums``: of the first of them.
template <int ROWS, bool FETCH>
BLADE_AVX512_BF16 static void int8_groups_panel(
    const Job& job, const Int8Inputs& inputs, const InputSums* input_sums, const GroupForm& form, int64_t row,
    int64_t panel, int64_t distance) {
    __m512 totals[ROWS][2];
    for (auto& pair : totals) pair[0] = pair[1] = _mm512_setzero_ps();
    const Panel<Kind::affine8> records(*job.weight, panel);
    const int64_t steps = job.weight->steps(), groups = job.weight->groups(), group_bytes = records.group_bytes();
    const uint8_t* record = records.record(0);
    const int8_t *upper = inputs.high + row * inputs.width, *lower = inputs.low + row * inputs.width;
    for (int64_t step = 0, at = 0; step < steps; ++at) {
        __m512i high[ROWS][2], low[ROWS][2];
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; ++i) {
            high[i][0] = high[i][1] = _mm512_set1_epi32(input_sums[i * groups + at].high);
            low[i][0] = low[i][1] = _mm512_set1_epi32(input_sums[i * groups + at].low);
        }
        const int64_t end = std::min(steps, step + records.group_steps());
        Fetch fetch{record + distance};
        for (; step < end; ++step, record += VALUE_BYTES_8, upper += STEP, lower += STEP) {
            if constexpr (FETCH) fetch.lines(VALUE_BYTES_8 / 64);
            add_bytes<ROWS>(high, low, upper, lower, inputs.width, record);
        }
        if constexpr (FETCH) fetch.lines((group_bytes + 63) / 64);
#pragma GCC unroll 2
        for (int tile = 0; tile < 2; ++tile) {
            const __m512 scale = form.scale<Kind::affine8>(record, tile);
            const __m512 zero = form.has_zeros ? form.zero(record, tile) : _mm512_setzero_ps();
#pragma GCC unroll 4
            for (int i = 0; i < ROWS; ++i) {
                const __m512 above = _mm512_cvtepi32_ps(high[i][tile]), below = _mm512_cvtepi32_ps(low[i][tile]);
                __m512 sum = _mm512_fmadd_ps(above, _mm512_set1_ps(256.0f), below);
                sum = _mm512_fnmadd_ps(zero, _mm512_set1_ps(input_sums[i * groups + at].both), sum);
                totals[i][tile] = _mm512_fmadd_ps(sum, scale, totals[i][tile]);
            }
        }
        record += group_bytes;
    }
    const Epilogue epilogue(*job.weight, panel);
    for (int i = 0; i < ROWS; ++i) {
        const __m512 scale = _mm512_set1_ps(inputs.scale[row + i]);
        epilogue.store(
            job.y + (row + i) * job.y_stride + panel * PANEL, _mm512_mul_ps(totals[i][0], scale),
            _mm512_mul_ps(totals[i][1], scale));
    }
}

template <bool FETCH>
BLADE_AVX512_BF16 static void int8_groups_panels(
    const Job& job, const Int8Inputs& inputs, const InputSums* sums, int64_t first, int64_t last, int64_t distance) {
    const GroupForm form(*job.weight);
    const int64_t groups = job.weight->groups();
    for (int64_t panel = first; panel < last; ++panel) {
        int64_t row = 0;
        for (; row + 4 <= job.rows; row += 4)
            int8_groups_panel<4, FETCH>(job, inputs, sums + row * groups, form, row, panel, distance);
        if (job.rows - row >= 2) {
            int8_groups_panel<2, FETCH>(job, inputs, sums + row * groups, form, row, panel, distance);
            row += 2;
        }
        if (job.rows > row) int8_groups_panel<1, FETCH>(job, inputs, sums + row * groups, form, row, panel, distance);
    }
}

// At most INT8_ROWS rows of at most INT8_INPUTS inputs.
BLADE_AVX512_BF16 static void multiply_int8_groups_dot(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    Int8Inputs inputs;
    split_inputs(job, buffers.bytes.get(2 * job.rows * job.weight->steps() * STEP), inputs);
    const int64_t count = job.rows * job.weight->groups();
    InputSums* sums = reinterpret_cast<InputSums*>(buffers.sums.get(count * sizeof(InputSums)));
    sum_input_groups(job, inputs, sums);
    const int64_t distance = prefetch_distance;
    if (distance) return int8_groups_panels<true>(job, inputs, sums, first, last, distance);
    int8_groups_panels<false>(job, inputs, sums, first, last, 0);
}

}  // namespace blade
