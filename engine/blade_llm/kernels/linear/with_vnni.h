// Quantised weights in integers with VNNI dot products, without making the weights bf16 first.
//
// Weights are unsigned bytes, as the instruction wants them, above a middle that stands for zero. The sums of a group start
// from -middle times the sum of its inputs; they become fp32 at its end, where zero points are subtracted and the scale is
// applied. int8 is a single group with its scale in the epilogue. A row's result does not depend on the rows around it.
#pragma once

#include <algorithm>
#include <type_traits>

#include "epilogue.h"
#include "groups.h"
#include "halves.h"
#include "stream.h"

namespace blade {

// What a byte holds that stands for zero: integers of affine4 are taken as they are, int4's levels 128 too large.
constexpr int middle_of(Kind kind) { return kind == Kind::affine4 ? 8 : 128; }

// Sums of the inputs of a group.
struct InputSums {
    int32_t high, low;  // of their halves, times -middle
    float both;
};

// The sum of 32 bytes, times -middle.
BLADE_AVX512_BF16 static inline __m256i add_halves(__m256i sum, const int8_t* halves, int middle) {
    const __m256i weights = _mm256_set1_epi8(static_cast<char>(middle));
    return _mm256_sub_epi32(sum, _mm256_dpbusd_epi32(_mm256_setzero_si256(), weights,
                                                     _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves))));
}

BLADE_AVX512_BF16 static inline int32_t sum_lanes(__m256i lanes) {
    return _mm512_reduce_add_epi32(_mm512_zextsi256_si512(lanes));
}

// [rows, groups]
template <Kind KIND>
BLADE_AVX512_BF16 static void sum_input_groups(const Job& job, const Halves& inputs, InputSums* to) {
    const int64_t group = Panel<KIND>(*job.weight, 0).group_steps() * STEP;
    constexpr int middle = middle_of(KIND);
    for (int64_t row = 0; row < job.rows; ++row)
        for (int64_t begin = 0; begin < inputs.width; begin += group, ++to) {
            __m256i high = _mm256_setzero_si256(), low = _mm256_setzero_si256();
            for (int64_t i = begin; i < std::min(inputs.width, begin + group); i += STEP) {
                high = add_halves(high, inputs.high + row * inputs.width + i, middle);
                low = add_halves(low, inputs.low + row * inputs.width + i, middle);
            }
            to->high = sum_lanes(high);
            to->low = sum_lanes(low);
            to->both = (static_cast<float>(to->high) * 256.0f + static_cast<float>(to->low)) / static_cast<float>(-middle);
        }
}

// Add the products of four inputs of ROWS rows, ``at`` bytes from the first, and both tiles' weights.
template <int ROWS>
BLADE_AVX512_BF16 static inline void add_four(
    __m512i (&high)[ROWS][2], __m512i (&low)[ROWS][2], const int8_t* upper, const int8_t* lower, int64_t width,
    __m512i first, __m512i second) {
#pragma GCC unroll 4
    for (int i = 0; i < ROWS; ++i) {
        const __m512i above = broadcast_word(upper + i * width), below = broadcast_word(lower + i * width);
        high[i][0] = _mm512_dpbusd_epi32(high[i][0], first, above);
        high[i][1] = _mm512_dpbusd_epi32(high[i][1], second, above);
        low[i][0] = _mm512_dpbusd_epi32(low[i][0], first, below);
        low[i][1] = _mm512_dpbusd_epi32(low[i][1], second, below);
    }
}

// The bytes of 64 nibbles: integers of affine4, levels of int4.
template <Kind KIND>
BLADE_AVX512_BF16 static inline __m512i nibble_bytes(__m512i values, __m512i levels) {
    const __m512i nibbles = _mm512_and_si512(values, _mm512_set1_epi8(15));
    if constexpr (KIND == Kind::int4) return _mm512_shuffle_epi8(levels, nibbles);
    return nibbles;
}

// Add one step of ROWS rows straight from a record. ``upper``, ``lower``: halves of the inputs, ``width`` a row.
template <Kind KIND, int ROWS>
BLADE_AVX512_BF16 static inline void add_record(
    __m512i (&high)[ROWS][2], __m512i (&low)[ROWS][2], const int8_t* upper, const int8_t* lower, int64_t width,
    const uint8_t* record, __m512i levels) {
    constexpr int vectors = value_bytes(KIND) / 128;  // of a tile
#pragma GCC unroll 8
    for (int vector = 0; vector < vectors; ++vector, record += 64) {
        const __m512i first = load_halves(record), second = load_halves(record + vectors * 64);
        if constexpr (has_nibbles(KIND)) {
#pragma GCC unroll 2
            for (int half = 0; half < 8; half += 4, upper += 4, lower += 4)
                add_four<ROWS>(
                    high, low, upper, lower, width, nibble_bytes<KIND>(_mm512_srli_epi16(first, half), levels),
                    nibble_bytes<KIND>(_mm512_srli_epi16(second, half), levels));
        } else {
            add_four<ROWS>(high, low, upper, lower, width, first, second);
            upper += 4;
            lower += 4;
        }
    }
}

// ROWS rows by one panel. ``input_sums``: of the first of them.
template <Kind KIND, int ROWS, bool FETCH>
BLADE_AVX512_BF16 static void groups_panel(
    const Job& job, const Halves& inputs, const InputSums* input_sums, const GroupForm& form, __m512i levels,
    int64_t row, int64_t panel, int64_t distance) {
    __m512 totals[ROWS][2];
    for (auto& pair : totals) pair[0] = pair[1] = _mm512_setzero_ps();
    const Panel<KIND> records(*job.weight, panel);
    const int64_t steps = job.weight->steps(), groups = records.groups(), group_bytes = records.group_bytes();
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
        for (; step < end; ++step, record += value_bytes(KIND), upper += STEP, lower += STEP) {
            if constexpr (FETCH) fetch.lines(value_bytes(KIND) / 64);
            add_record<KIND, ROWS>(high, low, upper, lower, inputs.width, record, levels);
        }
        if constexpr (FETCH) fetch.lines((group_bytes + 63) / 64);
#pragma GCC unroll 2
        for (int tile = 0; tile < 2; ++tile) {
            const __m512 scale = KIND == Kind::int8 ? _mm512_set1_ps(1.0f) : form.scale<KIND>(record, tile);
            const __m512 zero = is_affine(KIND) && form.has_zeros ? form.zero(record, tile) : _mm512_setzero_ps();
#pragma GCC unroll 4
            for (int i = 0; i < ROWS; ++i) {
                const __m512 above = _mm512_cvtepi32_ps(high[i][tile]), below = _mm512_cvtepi32_ps(low[i][tile]);
                __m512 sum = _mm512_fmadd_ps(above, _mm512_set1_ps(256.0f), below);
                if constexpr (is_affine(KIND))
                    sum = _mm512_fnmadd_ps(zero, _mm512_set1_ps(input_sums[i * groups + at].both), sum);
                totals[i][tile] = _mm512_fmadd_ps(sum, scale, totals[i][tile]);
            }
        }
        record += group_bytes;
    }
    const Epilogue epilogue(*job.weight, panel);
    for (int i = 0; i < ROWS; ++i) {
        const __m512 scale = _mm512_set1_ps(inputs.scale[row + i] / level_units(KIND));
        epilogue.store(
            job.y + (row + i) * job.y_stride + panel * PANEL, _mm512_mul_ps(totals[i][0], scale),
            _mm512_mul_ps(totals[i][1], scale));
    }
}

template <Kind KIND, bool FETCH>
BLADE_AVX512_BF16 static void groups_panels(
    const Job& job, const Halves& inputs, const InputSums* sums, int64_t first, int64_t last, int64_t distance) {
    const GroupForm form(*job.weight);
    const __m512i levels = _mm512_broadcast_i32x4(level_bytes<KIND>(*job.weight));
    const int64_t groups = Panel<KIND>(*job.weight, 0).groups();
    for (int64_t panel = first; panel < last; ++panel) {
        int64_t row = 0;
        const auto some = [&](auto count) BLADE_AVX512_BF16 {
            groups_panel<KIND, count, FETCH>(job, inputs, sums + row * groups, form, levels, row, panel, distance);
            row += count;
        };
        while (row + 4 <= job.rows) some(std::integral_constant<int, 4>());
        if (row + 3 <= job.rows) some(std::integral_constant<int, 3>());
        if (row + 2 <= job.rows) some(std::integral_constant<int, 2>());
        if (row < job.rows) some(std::integral_constant<int, 1>());
    }
}

// Any number of rows of at most INTEGER_INPUTS inputs.
template <Kind KIND>
BLADE_AVX512_BF16 static void multiply_vnni(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    const int64_t rows = std::min<int64_t>(job.rows, INTEGER_BLOCK), groups = Panel<KIND>(*job.weight, 0).groups();
    int8_t* bytes = buffers.bytes.get(2 * rows * job.weight->steps() * STEP);
    InputSums* sums = reinterpret_cast<InputSums*>(buffers.sums.get(rows * groups * sizeof(InputSums)));
    const int64_t distance = prefetch_distance(KIND);
    for (int64_t row = 0; row < job.rows; row += INTEGER_BLOCK) {
        const Job block{job.weight, job.x + row * job.x_stride, std::min<int64_t>(INTEGER_BLOCK, job.rows - row),
                        job.x_stride, job.y + row * job.y_stride, job.y_stride};
        Halves inputs;
        split_inputs<KIND>(block, bytes, inputs);
        sum_input_groups<KIND>(block, inputs, sums);
        if (distance)
            groups_panels<KIND, true>(block, inputs, sums, first, last, distance);
        else
            groups_panels<KIND, false>(block, inputs, sums, first, last, 0);
    }
}

}  // namespace blade
