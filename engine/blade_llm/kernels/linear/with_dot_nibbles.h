// 4-bit weights by few rows with AVX512-BF16 dot products, without being stored as bf16.
//
// Levels and integers are exact in bf16, and scales are applied to the sums of a group: nothing of the weight is rounded.
// Zero points take from such a sum what they would have added to it, so many times the sum of the group's inputs.
#pragma once

#include "unpack.h"
#include "with_dot.h"

namespace blade {

constexpr int INT4_ROWS = 4;      // at most
constexpr int INT4_ROWS_AMX = 2;  // with AMX, unpacking pays from the third row on

// Four pairs of inputs of one row by as many rows of both tiles.
#define BLADE_DOT_INT4(i)                                                       \
    do {                                                                        \
        const __m512i pair = broadcast_word(pairs + 2 * (i));                   \
        group[row][0] = dot(group[row][0], pair, BLADE_INT4_ROW(first, i, levels));  \
        group[row][1] = dot(group[row][1], pair, BLADE_INT4_ROW(second, i, levels)); \
    } while (0)

// Add one step straight from the nibbles of a record.
template <int ROWS>
BLADE_AVX512_BF16 static inline void dot_nibbles(
    __m512 (&group)[ROWS][2], const bf16* x, int64_t x_stride, const uint8_t* record, __m512i levels) {
#pragma GCC unroll 4
    for (int vector = 0; vector < 4; ++vector) {
        const __m512i first = load_halves(record + vector * 64), second = load_halves(record + 256 + vector * 64);
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; ++row) {
            const bf16* pairs = x + row * x_stride + vector * 8;
            BLADE_DOT_INT4(0);
            BLADE_DOT_INT4(1);
            BLADE_DOT_INT4(2);
            BLADE_DOT_INT4(3);
        }
    }
}

// Sums of each row's inputs group by group, where there are zero points to multiply with them. [rows, groups]
BLADE_AVX512_BF16 static const float* sum_groups(const Job& job, Buffers& buffers) {
    const Weight& weight = *job.weight;
    if (!weight.has_zeros) return nullptr;
    const int64_t width = weight.steps() * STEP, group = weight.group_steps * STEP;
    float *sums = buffers.sums.get(job.rows * weight.groups() * sizeof(float)), *to = sums;
    for (int64_t row = 0; row < job.rows; ++row)
        for (int64_t begin = 0; begin < width; begin += group) {
            __m512 sum = _mm512_setzero_ps();
            for (int64_t i = begin; i < std::min(width, begin + group); i += 16)
                sum = _mm512_add_ps(sum, load_bf16(job.x + row * job.x_stride + i));
            *to++ = _mm512_reduce_add_ps(sum);
        }
    return sums;
}

template <Kind KIND, int ROWS, bool FETCH>
BLADE_AVX512_BF16 static void nibbles_panel(
    const Job& job, int64_t panel, const Tables& tables, const float* input_sums, int64_t distance) {
    __m512 sums[ROWS][2];
    for (auto& pair : sums) pair[0] = pair[1] = _mm512_setzero_ps();
    const bf16* x = job.x;
    const Panel<KIND> records(*job.weight, panel);
    const int64_t steps = job.weight->steps(), groups = job.weight->groups(), group_bytes = records.group_bytes();
    const uint8_t* record = records.record(0);
    for (int64_t step = 0, at = 0; step < steps; ++at) {
        __m512 group[ROWS][2];
        for (auto& pair : group) pair[0] = pair[1] = _mm512_setzero_ps();
        const int64_t end = std::min(steps, step + records.group_steps());
        Fetch fetch{record + distance};
        do {
            if constexpr (FETCH) fetch.lines(VALUE_BYTES_4 / 64);
            dot_nibbles<ROWS>(group, x, job.x_stride, record, tables.levels);
            record += VALUE_BYTES_4;
            x += STEP;
        } while (++step < end);
        if constexpr (FETCH) fetch.lines((group_bytes + 63) / 64);
#pragma GCC unroll 2
        for (int tile = 0; tile < 2; ++tile) {
            const __m512 scale = tables.form.scale<KIND>(record, tile);
            if (KIND == Kind::affine4 && input_sums) {
                const __m512 zero = tables.form.zero(record, tile);
#pragma GCC unroll 4
                for (int i = 0; i < ROWS; ++i)
                    group[i][tile] = _mm512_fnmadd_ps(zero, _mm512_set1_ps(input_sums[i * groups + at]), group[i][tile]);
            }
#pragma GCC unroll 4
            for (int i = 0; i < ROWS; ++i) sums[i][tile] = _mm512_fmadd_ps(group[i][tile], scale, sums[i][tile]);
        }
        record += group_bytes;
    }
    const Epilogue epilogue(*job.weight, panel);
    for (int i = 0; i < ROWS; ++i)
        epilogue.store(job.y + i * job.y_stride + panel * PANEL, sums[i][0], sums[i][1]);
}

template <Kind KIND, int MOST>
BLADE_AVX512_BF16 static void nibbles_panels(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    if constexpr (MOST > 1)
        if (job.rows < MOST) return nibbles_panels<KIND, MOST - 1>(job, first, last, buffers);
    const Tables tables(*job.weight);
    const float* input_sums = sum_groups(job, buffers);
    const int64_t distance = prefetch_distance;
    for (int64_t panel = first; panel < last; ++panel)
        if (distance)
            nibbles_panel<KIND, MOST, true>(job, panel, tables, input_sums, distance);
        else
            nibbles_panel<KIND, MOST, false>(job, panel, tables, input_sums, 0);
}

template <Kind KIND>
BLADE_AVX512_BF16 static void multiply_nibbles_dot(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    nibbles_panels<KIND, INT4_ROWS>(job, first, last, buffers);
}

}  // namespace blade
