// Multiplication with AVX512-BF16 dot products: few rows of int4 weights anywhere, everything on CPUs without AMX.
#pragma once

#include <algorithm>

#include "epilogue.h"
#include "unpack.h"

namespace blade {

constexpr int DOT_ROWS = 8;        // 16 sums: enough to hide the instruction's latency
constexpr int INT4_ROWS = 4;       // up to here int4 weights are multiplied without being stored as bf16
constexpr int INT4_ROWS_AMX = 2;   // with AMX, unpacking pays from the third row on
constexpr int64_t DOT_PREFETCH = 2048;
constexpr int64_t DOT_BLOCK_BYTES = 1 << 19;  // rows that stay in half the L2 cache while panels pass by

BLADE_AVX512_BF16 static inline __m512 dot(__m512 sum, const bf16* x, __m512i row) {
    int pair;
    memcpy(&pair, x, sizeof pair);
    return _mm512_dpbf16_ps(sum, (__m512bh)row, (__m512bh)_mm512_set1_epi32(pair));
}

// One step of bf16 tiles for ROWS rows.
template <int ROWS>
BLADE_AVX512_BF16 static inline void dot_tiles(__m512 (&sums)[ROWS][2], const bf16* x, int64_t x_stride, const bf16* tiles) {
#pragma GCC unroll 4
    for (int pair = 0; pair < 16; ++pair) {
        __m512i first = _mm512_loadu_si512(tiles + pair * 32), second = _mm512_loadu_si512(tiles + TILE_WORDS + pair * 32);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i) {
            sums[i][0] = dot(sums[i][0], x + i * x_stride + pair * 2, first);
            sums[i][1] = dot(sums[i][1], x + i * x_stride + pair * 2, second);
        }
    }
}

// One step straight from an int4 record.
template <int ROWS>
BLADE_AVX512_BF16 static inline void dot_int4(
    __m512 (&sums)[ROWS][2], const bf16* x, int64_t x_stride, const uint8_t* record, __m512i levels) {
    __m512 group[ROWS][2];
    for (auto& pair : group) pair[0] = pair[1] = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int vector = 0; vector < 4; ++vector) {
        __m512i first = _mm512_loadu_si512(record + vector * 64), second = _mm512_loadu_si512(record + 256 + vector * 64);
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; ++i) {
            const bf16* pairs = x + i * x_stride + vector * 8;
            group[i][0] = dot(group[i][0], pairs, BLADE_INT4_ROW(first, 0, levels));
            group[i][1] = dot(group[i][1], pairs, BLADE_INT4_ROW(second, 0, levels));
            group[i][0] = dot(group[i][0], pairs + 2, BLADE_INT4_ROW(first, 1, levels));
            group[i][1] = dot(group[i][1], pairs + 2, BLADE_INT4_ROW(second, 1, levels));
            group[i][0] = dot(group[i][0], pairs + 4, BLADE_INT4_ROW(first, 2, levels));
            group[i][1] = dot(group[i][1], pairs + 4, BLADE_INT4_ROW(second, 2, levels));
            group[i][0] = dot(group[i][0], pairs + 6, BLADE_INT4_ROW(first, 3, levels));
            group[i][1] = dot(group[i][1], pairs + 6, BLADE_INT4_ROW(second, 3, levels));
        }
    }
    const bf16* scales = reinterpret_cast<const bf16*>(record + 512);
    __m512 scale[2] = {load_bf16(scales), load_bf16(scales + 16)};
    for (int i = 0; i < ROWS; ++i)
        for (int tile = 0; tile < 2; ++tile) sums[i][tile] = _mm512_fmadd_ps(group[i][tile], scale[tile], sums[i][tile]);
}

// ROWS rows by one panel, straight from its records.
template <Kind KIND, int ROWS>
BLADE_AVX512_BF16 static void dot_panel(
    const Job& job, int64_t row, int64_t panel, const uint8_t* records, __m512i levels) {
    constexpr int bytes = record_bytes(KIND);
    __m512 sums[ROWS][2];
    for (auto& pair : sums) pair[0] = pair[1] = _mm512_setzero_ps();
    const bf16* x = job.x + row * job.x_stride;
    const int64_t steps = job.weight->steps();
    for (int64_t step = 0; step < steps; ++step) {
        const uint8_t* record = records + step * bytes;
#pragma GCC unroll 32
        for (int at = 0; at < bytes; at += 64) _mm_prefetch(record + DOT_PREFETCH + at, _MM_HINT_T0);
        if constexpr (KIND == Kind::bf16)
            dot_tiles<ROWS>(sums, x + step * STEP, job.x_stride, reinterpret_cast<const bf16*>(record));
        else
            dot_int4<ROWS>(sums, x + step * STEP, job.x_stride, record, levels);
    }
    const Epilogue epilogue(*job.weight, panel);
    for (int i = 0; i < ROWS; ++i)
        epilogue.store(job.y + (row + i) * job.y_stride + panel * PANEL, sums[i][0], sums[i][1]);
}

// The template for a number of rows that is known at run time only.
template <Kind KIND, int MOST>
BLADE_AVX512_BF16 static inline void dot_rows(
    int rows, const Job& job, int64_t row, int64_t panel, const uint8_t* records, __m512i levels) {
    if constexpr (MOST > 1)
        if (rows < MOST) return dot_rows<KIND, MOST - 1>(rows, job, row, panel, records, levels);
    dot_panel<KIND, MOST>(job, row, panel, records, levels);
}

// int4 weights by at most INT4_ROWS rows.
BLADE_AVX512_BF16 static void multiply_int4_dot(const Job& job, int64_t first, int64_t last, Buffers&) {
    const Weight& weight = *job.weight;
    const __m512i levels = _mm512_loadu_si512(weight.levels);
    for (int64_t panel = first; panel < last; ++panel)
        dot_rows<Kind::int4, INT4_ROWS>(
            static_cast<int>(job.rows), job, 0, panel, weight.records + panel * weight.panel_bytes(), levels);
}

// Any number of rows; quantised panels are unpacked once per block of rows.
template <Kind KIND>
BLADE_AVX512_BF16 static void multiply_dot(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    const Weight& weight = *job.weight;
    const Tables tables(weight);
    const int64_t panel_bytes = weight.panel_bytes(), steps = weight.steps();
    bf16* unpacked = KIND == Kind::bf16 ? nullptr : buffers.unpacked.get(steps * UNPACKED_RECORD);
    const int64_t block_rows = std::max<int64_t>(DOT_BLOCK_BYTES / (steps * STEP * 2) / DOT_ROWS, 1) * DOT_ROWS;
    for (int64_t block = 0; block < job.rows; block += block_rows) {
        const int64_t end = std::min(job.rows, block + block_rows);
        for (int64_t panel = first; panel < last; ++panel) {
            const uint8_t* records = weight.records + panel * panel_bytes;
            if constexpr (KIND != Kind::bf16) {
                for (int64_t step = 0; step < steps; ++step)
                    unpack_record<KIND>(records + step * record_bytes(KIND), unpacked + step * 2 * TILE_WORDS, tables);
                records = reinterpret_cast<const uint8_t*>(unpacked);
            }
            for (int64_t row = block; row < end; row += DOT_ROWS)
                dot_rows<Kind::bf16, DOT_ROWS>(
                    static_cast<int>(std::min<int64_t>(DOT_ROWS, end - row)), job, row, panel, records, tables.levels);
        }
    }
}

}  // namespace blade
