// int4 weights by few rows with AVX512-BF16 dot products, without being stored as bf16.
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

// One step straight from an int4 record.
template <int ROWS>
BLADE_AVX512_BF16 static inline void dot_int4(
    __m512 (&sums)[ROWS][2], const bf16* x, int64_t x_stride, const uint8_t* record, __m512i levels) {
    __m512 group[ROWS][2];
    for (auto& pair : group) pair[0] = pair[1] = _mm512_setzero_ps();
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
    const bf16* scales = reinterpret_cast<const bf16*>(record + 512);
    const __m512 scale[2] = {load_bf16(scales), load_bf16(scales + 16)};
    for (int i = 0; i < ROWS; ++i)
        for (int tile = 0; tile < 2; ++tile) sums[i][tile] = _mm512_fmadd_ps(group[i][tile], scale[tile], sums[i][tile]);
}

template <int ROWS, bool FETCH>
BLADE_AVX512_BF16 static void int4_panel(const Job& job, int64_t panel, __m512i levels, int64_t distance) {
    __m512 sums[ROWS][2];
    for (auto& pair : sums) pair[0] = pair[1] = _mm512_setzero_ps();
    const bf16* x = job.x;
    const uint8_t* record = job.weight->records + panel * job.weight->panel_bytes();
    Fetch fetch{record + distance};
    for (int64_t step = job.weight->steps(); step > 0; --step, record += record_bytes(Kind::int4), x += STEP) {
        if constexpr (FETCH) fetch.lines(record_bytes(Kind::int4) / 64);
        dot_int4<ROWS>(sums, x, job.x_stride, record, levels);
    }
    const Epilogue epilogue(*job.weight, panel);
    for (int i = 0; i < ROWS; ++i)
        epilogue.store(job.y + i * job.y_stride + panel * PANEL, sums[i][0], sums[i][1]);
}

template <int MOST>
BLADE_AVX512_BF16 static void int4_panels(const Job& job, int64_t first, int64_t last) {
    if constexpr (MOST > 1)
        if (job.rows < MOST) return int4_panels<MOST - 1>(job, first, last);
    const __m512i levels = _mm512_loadu_si512(job.weight->levels);
    const int64_t distance = prefetch_distance;
    for (int64_t panel = first; panel < last; ++panel)
        if (distance)
            int4_panel<MOST, true>(job, panel, levels, distance);
        else
            int4_panel<MOST, false>(job, panel, levels, 0);
}

BLADE_AVX512_BF16 static void multiply_int4_dot(const Job& job, int64_t first, int64_t last, Buffers&) {
    int4_panels<INT4_ROWS>(job, first, last);
}

}  // namespace blade
