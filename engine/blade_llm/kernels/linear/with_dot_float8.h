// float8 with AVX512-BF16 dot products: e4m3 becomes bf16, which changes no value, and products are exact.
//
// Sums run over the inputs of a segment, the steps that have one scale of the weight and one of the activations; at its
// end they are scaled and added to the total. So it is for any number of rows, and a row's result does not depend on the
// others. Few rows take the weights out of registers, many out of L1.
#pragma once

#include <algorithm>

#include "with_dot_unpacked.h"

namespace blade {

constexpr int FLOAT8_STREAM_ROWS = 4;  // up to here weights go through registers alone

// Steps with the same scales; all of them where the kind is another.
struct Segments {
    int64_t steps, group_steps, input_steps;

    explicit Segments(const Weight& weight)
        : steps(weight.steps()),
          group_steps(weight.kind == Kind::float8 && weight.group_steps ? weight.group_steps : steps),
          input_steps(weight.input_steps ? weight.input_steps : steps) {}

    int64_t end(int64_t step) const {
        return std::min({steps, (step / group_steps + 1) * group_steps, (step / input_steps + 1) * input_steps});
    }
};

// Scales of the 32 outputs of a panel in the group that a step belongs to, and of a row.
struct SegmentScales {
    __m512 first, second;

    BLADE_AVX512_BF16 SegmentScales(const Panel<Kind::float8>& panel, int64_t step) {
        const float* scales = reinterpret_cast<const float*>(panel.scales(step));
        first = scales ? _mm512_loadu_ps(scales) : _mm512_set1_ps(1.0f);
        second = scales ? _mm512_loadu_ps(scales + 16) : _mm512_set1_ps(1.0f);
    }
};

BLADE_AVX512_BF16 static inline __m512 row_scale(const Job& job, const Segments& segments, int64_t row, int64_t step) {
    if (!job.row_scales) return _mm512_set1_ps(1.0f);
    return _mm512_set1_ps(job.row_scales[row * job.row_groups + step / segments.input_steps]);
}

// Add the sums of a segment, scaled, to the totals of the same rows; ``begin``: its first step, 0 for the first segment,
// before which there is no total. Both are [rows, PANEL].
BLADE_AVX512_BF16 static inline void add_segment(
    const Job& job, const Segments& segments, const Panel<Kind::float8>& panel, int64_t begin, int64_t row, int64_t rows,
    const float* sums, float* totals) {
    const SegmentScales scales(panel, begin);
    for (int64_t end = row + rows; row < end; ++row, sums += PANEL, totals += PANEL) {
        const __m512 own = row_scale(job, segments, row, begin);
        const __m512 first = _mm512_mul_ps(scales.first, own), second = _mm512_mul_ps(scales.second, own);
        const __m512 zero = _mm512_setzero_ps();
        const __m512 before = begin ? _mm512_load_ps(totals) : zero, after = begin ? _mm512_load_ps(totals + 16) : zero;
        _mm512_store_ps(totals, _mm512_fmadd_ps(_mm512_load_ps(sums), first, before));
        _mm512_store_ps(totals + 16, _mm512_fmadd_ps(_mm512_load_ps(sums + 16), second, after));
    }
}

// The outputs of some rows and a panel, from [rows, PANEL].
BLADE_AVX512_BF16 static inline void store_totals(
    const Job& job, int64_t row, int64_t rows, int64_t panel, const float* totals) {
    const Epilogue epilogue(*job.weight, panel);
    for (int64_t end = row + rows; row < end; ++row, totals += PANEL)
        epilogue.store(
            job.y + row * job.y_stride + panel * PANEL, _mm512_load_ps(totals), _mm512_load_ps(totals + 16));
}

// Add one record, which is unpacked on the way.
template <int ROWS>
BLADE_AVX512_BF16 static inline void add_float8(
    __m512 (&sums)[ROWS][2], const bf16* x, int64_t x_stride, const uint8_t* record, const ByteTables& tables) {
#pragma GCC unroll 2
    for (int vector = 0; vector < 8; ++vector) {
        __m512i first[2], second[2];
        unpack_float8(load_halves(record + vector * 64), tables, first);
        unpack_float8(load_halves(record + 512 + vector * 64), tables, second);
#pragma GCC unroll 2
        for (int pair = 0; pair < 2; ++pair)
#pragma GCC unroll 4
            for (int i = 0; i < ROWS; ++i) {
                const __m512i inputs = broadcast_word(x + i * x_stride + vector * 4 + pair * 2);
                sums[i][0] = dot(sums[i][0], inputs, first[pair]);
                sums[i][1] = dot(sums[i][1], inputs, second[pair]);
            }
    }
}

template <int ROWS, bool FETCH>
BLADE_AVX512_BF16 static void float8_panel(const Job& job, int64_t panel, const ByteTables& tables, int64_t distance) {
    const Weight& weight = *job.weight;
    const Panel<Kind::float8> records(weight, panel);
    const Segments segments(weight);
    __m512 totals[ROWS][2];
    for (auto& pair : totals) pair[0] = pair[1] = _mm512_setzero_ps();
    for (int64_t step = 0; step < segments.steps;) {
        const int64_t begin = step, end = segments.end(step);
        __m512 sums[ROWS][2];
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; ++i) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
        const uint8_t* record = records.record(step);
        Fetch fetch{record + distance};
        for (; step < end; ++step, record += VALUE_BYTES_8) {
            if constexpr (FETCH) fetch.lines(VALUE_BYTES_8 / 64);
            add_float8<ROWS>(sums, job.x + step * STEP, job.x_stride, record, tables);
        }
        const SegmentScales scales(records, begin);
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; ++i) {
            const __m512 own = row_scale(job, segments, i, begin);
            totals[i][0] = _mm512_fmadd_ps(sums[i][0], _mm512_mul_ps(scales.first, own), totals[i][0]);
            totals[i][1] = _mm512_fmadd_ps(sums[i][1], _mm512_mul_ps(scales.second, own), totals[i][1]);
        }
    }
    const Epilogue epilogue(weight, panel);
    for (int i = 0; i < ROWS; ++i) epilogue.store(job.y + i * job.y_stride + panel * PANEL, totals[i][0], totals[i][1]);
}

template <int MOST>
BLADE_AVX512_BF16 static inline void float8_rows(
    const Job& job, int64_t panel, const ByteTables& tables, int64_t distance) {
    if constexpr (MOST > 1)
        if (job.rows < MOST) return float8_rows<MOST - 1>(job, panel, tables, distance);
    if (distance)
        float8_panel<MOST, true>(job, panel, tables, distance);
    else
        float8_panel<MOST, false>(job, panel, tables, 0);
}

// Rows of a block by a panel; ``sums`` and ``totals``: [rows, PANEL].
BLADE_AVX512_BF16 static void float8_block(
    const Job& job, int64_t block, int64_t rows, int64_t panel, const Tables& tables, bf16* unpacked, float* sums,
    float* totals) {
    const Weight& weight = *job.weight;
    const Panel<Kind::float8> records(weight, panel);
    const Segments segments(weight);
    const int64_t groups = (rows + DOT_ROWS - 1) / DOT_ROWS;
    for (int64_t begin = 0; begin < segments.steps;) {
        const int64_t end = segments.end(begin);
        for (int64_t step = begin; step < end; step += DOT_STEPS) {
            const int64_t steps = std::min(DOT_STEPS, end - step);
            for (int64_t i = 0; i < steps; ++i)
                unpack_record<Kind::float8>(records, step + i, unpacked + i * 2 * TILE_WORDS, tables);
            Fetch fetch{records.record(step) + steps * VALUE_BYTES_8};
            const int64_t lines = (steps * (VALUE_BYTES_8 / 64) + groups - 1) / groups;
            for (int64_t row = 0; row < rows; row += DOT_ROWS) {
                fetch.lines(lines);
                dot_part_rows<DOT_ROWS>(
                    std::min<int64_t>(DOT_ROWS, rows - row), sums + row * PANEL,
                    job.x + (block + row) * job.x_stride + step * STEP, job.x_stride, unpacked, steps, step == begin);
            }
        }
        add_segment(job, segments, records, begin, block, rows, sums, totals);
        begin = end;
    }
    store_totals(job, block, rows, panel, totals);
}

BLADE_AVX512_BF16 static void multiply_float8(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    const Weight& weight = *job.weight;
    const Tables tables(weight);
    if (job.rows <= FLOAT8_STREAM_ROWS) {
        const int64_t distance = prefetch_distance(Kind::float8);
        for (int64_t panel = first; panel < last; ++panel)
            float8_rows<FLOAT8_STREAM_ROWS>(job, panel, tables.bytes, distance);
        return;
    }
    const int64_t block_rows = std::min(dot_block_rows(weight), job.rows);
    bf16* unpacked = buffers.unpacked.get(DOT_STEPS * UNPACKED_RECORD);
    float* sums = buffers.sums.get(2 * block_rows * PANEL * sizeof(float));
    for (int64_t block = 0; block < job.rows; block += block_rows) {
        const int64_t rows = std::min(block_rows, job.rows - block);
        for (int64_t panel = first; panel < last; ++panel)
            float8_block(job, block, rows, panel, tables, unpacked, sums, sums + block_rows * PANEL);
    }
}

}  // namespace blade
