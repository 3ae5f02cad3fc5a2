// bf16 weights by AVX512-BF16 dot products: everything on CPUs without AMX.
#pragma once

#include <algorithm>

#include "epilogue.h"
#include "stream.h"

namespace blade {

constexpr int DOT_ROWS = 8;         // 16 sums: enough to hide the instruction's latency
constexpr int DOT_STREAM_ROWS = 4;  // up to here the weights come slower than they are multiplied

// Rows that stay in half the L2 cache while panels pass by.
static inline int64_t dot_block_rows(const Weight& weight) {
    constexpr int64_t bytes = 1 << 19;
    return std::max<int64_t>(bytes / (weight.steps() * STEP * 2) / DOT_ROWS, 1) * DOT_ROWS;
}

// ``pair``: two inputs, in every word.
BLADE_AVX512_BF16 static inline __m512 dot(__m512 sum, __m512i pair, __m512i row) {
    return _mm512_dpbf16_ps(sum, (__m512bh)row, (__m512bh)pair);
}

// One step of bf16 tiles for ROWS rows, one after the other, in the order in which memory gives them; FETCH as many lines.
template <int ROWS, bool FETCH>
BLADE_AVX512_BF16 static inline void dot_stream(
    __m512 (&sums)[ROWS][2], const bf16* x, int64_t x_stride, const bf16* tiles, Fetch& fetch) {
#pragma GCC unroll 2
    for (int tile = 0; tile < 2; ++tile)
#pragma GCC unroll 4
        for (int pair = 0; pair < 16; ++pair, tiles += 32) {
            if constexpr (FETCH) fetch.lines(1);
            const __m512i row = load_halves(tiles);
#pragma GCC unroll 8
            for (int i = 0; i < ROWS; ++i)
                sums[i][tile] = dot(sums[i][tile], broadcast_word(x + i * x_stride + pair * 2), row);
        }
}

// Both tiles at once: half as many broadcasts, each of which takes as long as a dot product. FETCH half as many lines.
template <int ROWS, bool FETCH>
BLADE_AVX512_BF16 static inline void dot_tiles(
    __m512 (&sums)[ROWS][2], const bf16* x, int64_t x_stride, const bf16* tiles, Fetch& fetch) {
#pragma GCC unroll 4
    for (int pair = 0; pair < 16; ++pair, tiles += 32) {
        if constexpr (FETCH) fetch.lines(1);
        const __m512i first = _mm512_loadu_si512(tiles), second = _mm512_loadu_si512(tiles + TILE_WORDS);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i) {
            const __m512i inputs = broadcast_word(x + i * x_stride + pair * 2);
            sums[i][0] = dot(sums[i][0], inputs, first);
            sums[i][1] = dot(sums[i][1], inputs, second);
        }
    }
}

// ROWS rows by one panel. STREAM: where the weights come slower than they are multiplied.
template <int ROWS, bool STREAM, bool FETCH>
BLADE_AVX512_BF16 static void dot_panel(const Job& job, int64_t row, int64_t panel, Fetch fetch) {
    __m512 sums[ROWS][2];
    for (auto& pair : sums) pair[0] = pair[1] = _mm512_setzero_ps();
    const bf16* x = job.x + row * job.x_stride;
    const bf16* tiles = reinterpret_cast<const bf16*>(job.weight->records + panel * job.weight->panel_bytes());
    for (int64_t step = job.weight->steps(); step > 0; --step, tiles += 2 * TILE_WORDS, x += STEP)
        if constexpr (STREAM)
            dot_stream<ROWS, FETCH>(sums, x, job.x_stride, tiles, fetch);
        else
            dot_tiles<ROWS, FETCH>(sums, x, job.x_stride, tiles, fetch);
    const Epilogue epilogue(*job.weight, panel);
    for (int i = 0; i < ROWS; ++i)
        epilogue.store(job.y + (row + i) * job.y_stride + panel * PANEL, sums[i][0], sums[i][1]);
}

// The template for a number of rows that is known at run time only.
template <int MOST, bool STREAM, bool FETCH>
BLADE_AVX512_BF16 static inline void dot_rows(int64_t rows, const Job& job, int64_t row, int64_t panel, Fetch fetch) {
    if constexpr (MOST > 1)
        if (rows < MOST) return dot_rows<MOST - 1, STREAM, FETCH>(rows, job, row, panel, fetch);
    dot_panel<MOST, STREAM, FETCH>(job, row, panel, fetch);
}

// Rows [begin, end) by one panel. From some rows on there is time to fetch the whole next panel, half of it with each of
// the first two groups of rows.
BLADE_AVX512_BF16 static void dot_block(const Job& job, int64_t begin, int64_t end, int64_t panel) {
    const int64_t rows = end - begin, panel_bytes = job.weight->panel_bytes(), distance = prefetch_distance(Kind::bf16);
    const uint8_t *records = job.weight->records + panel * panel_bytes, *next = records + panel_bytes;
    if (rows > DOT_ROWS) {
        for (int64_t row = begin, group = 0; row < end; row += DOT_ROWS, ++group) {
            const int64_t some = std::min<int64_t>(DOT_ROWS, end - row);
            if (group < 2)
                dot_rows<DOT_ROWS, false, true>(some, job, row, panel, {next + group * panel_bytes / 2});
            else
                dot_rows<DOT_ROWS, false, false>(some, job, row, panel, {});
        }
    } else if (rows > DOT_STREAM_ROWS) {
        dot_rows<DOT_ROWS, true, true>(rows, job, begin, panel, {next});
    } else if (distance) {
        dot_rows<DOT_STREAM_ROWS, true, true>(rows, job, begin, panel, {records + distance});
    } else {
        dot_rows<DOT_STREAM_ROWS, true, false>(rows, job, begin, panel, {});
    }
}

BLADE_AVX512_BF16 static void multiply_bf16_dot(const Job& job, int64_t first, int64_t last, Buffers&) {
    const int64_t block_rows = dot_block_rows(*job.weight);
    for (int64_t begin = 0; begin < job.rows; begin += block_rows)
        for (int64_t panel = first; panel < last; ++panel)
            dot_block(job, begin, std::min(job.rows, begin + block_rows), panel);
}

}  // namespace blade
