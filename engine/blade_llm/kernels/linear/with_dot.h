// Multiplication with AVX512-BF16 dot products: few rows of int4 weights anywhere, everything on CPUs without AMX.
#pragma once

#include <algorithm>

#include "epilogue.h"
#include "stream.h"
#include "unpack.h"

namespace blade {

constexpr int DOT_ROWS = 8;          // 16 sums: enough to hide the instruction's latency
constexpr int DOT_STREAM_ROWS = 4;   // up to here the weights come slower than they are multiplied
constexpr int64_t DOT_STEPS = 8;     // records that are unpacked at a time: 16 KiB, half of L1
constexpr int INT4_ROWS = 4;         // up to here int4 weights are multiplied without being stored as bf16
constexpr int INT4_ROWS_AMX = 2;     // with AMX, unpacking pays from the third row on

// Rows that stay in half the L2 cache while panels pass by.
static inline int64_t dot_block_rows(const Weight& weight) {
    constexpr int64_t bytes = 1 << 19;
    return std::max<int64_t>(bytes / (weight.steps() * STEP * 2) / DOT_ROWS, 1) * DOT_ROWS;
}

// ``pair``: two inputs, in every word.
BLADE_AVX512_BF16 static inline __m512 dot(__m512 sum, __m512i pair, __m512i row) {
    return _mm512_dpbf16_ps(sum, (__m512bh)row, (__m512bh)pair);
}

// One step of bf16 tiles for ROWS rows. EVERY so many lines one is fetched, 0 for never. STREAM: where reading the tiles
// takes longer than multiplying them, they are read in the order in which they lie; else both at once, which needs half as
// many broadcasts.
template <int ROWS, int EVERY, bool STREAM>
BLADE_AVX512_BF16 static inline void dot_tiles(
    __m512 (&sums)[ROWS][2], const bf16* x, int64_t x_stride, const bf16* tiles, Fetch& fetch) {
    if constexpr (STREAM) {
#pragma GCC unroll 2
        for (int tile = 0; tile < 2; ++tile)
#pragma GCC unroll 4
            for (int pair = 0; pair < 16; ++pair, tiles += 32) {
                if constexpr (EVERY > 0)
                    if (pair % EVERY == 0) fetch.lines(1);
                const __m512i row = load_halves(tiles);
#pragma GCC unroll 8
                for (int i = 0; i < ROWS; ++i)
                    sums[i][tile] = dot(sums[i][tile], broadcast_word(x + i * x_stride + pair * 2), row);
            }
    } else {
#pragma GCC unroll 4
        for (int pair = 0; pair < 16; ++pair, tiles += 32) {
            if constexpr (EVERY == 1) fetch.lines(2);
            if constexpr (EVERY > 1)
                if (pair % (EVERY / 2) == 0) fetch.lines(1);
            const __m512i first = _mm512_loadu_si512(tiles), second = _mm512_loadu_si512(tiles + TILE_WORDS);
#pragma GCC unroll 8
            for (int i = 0; i < ROWS; ++i) {
                const __m512i inputs = broadcast_word(x + i * x_stride + pair * 2);
                sums[i][0] = dot(sums[i][0], inputs, first);
                sums[i][1] = dot(sums[i][1], inputs, second);
            }
        }
    }
}

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

// ROWS rows by one panel, straight from its records.
template <Kind KIND, int ROWS, int EVERY, bool STREAM>
BLADE_AVX512_BF16 static void dot_panel(
    const Job& job, int64_t row, int64_t panel, const uint8_t* records, __m512i levels, Fetch fetch) {
    __m512 sums[ROWS][2];
    for (auto& pair : sums) pair[0] = pair[1] = _mm512_setzero_ps();
    const bf16* x = job.x + row * job.x_stride;
    for (int64_t step = job.weight->steps(); step > 0; --step, records += record_bytes(KIND), x += STEP) {
        if constexpr (KIND == Kind::bf16) {
            dot_tiles<ROWS, EVERY, STREAM>(sums, x, job.x_stride, reinterpret_cast<const bf16*>(records), fetch);
        } else {
            if constexpr (EVERY > 0) fetch.lines(record_bytes(KIND) / 64);
            dot_int4<ROWS>(sums, x, job.x_stride, records, levels);
        }
    }
    const Epilogue epilogue(*job.weight, panel);
    for (int i = 0; i < ROWS; ++i)
        epilogue.store(job.y + (row + i) * job.y_stride + panel * PANEL, sums[i][0], sums[i][1]);
}

// The template for a number of rows that is known at run time only.
template <Kind KIND, int MOST, int EVERY, bool STREAM>
BLADE_AVX512_BF16 static inline void dot_rows(
    int64_t rows, const Job& job, int64_t row, int64_t panel, const uint8_t* records, __m512i levels, Fetch fetch) {
    if constexpr (MOST > 1)
        if (rows < MOST) return dot_rows<KIND, MOST - 1, EVERY, STREAM>(rows, job, row, panel, records, levels, fetch);
    dot_panel<KIND, MOST, EVERY, STREAM>(job, row, panel, records, levels, fetch);
}

// int4 weights by at most INT4_ROWS rows.
BLADE_AVX512_BF16 static void multiply_int4_dot(const Job& job, int64_t first, int64_t last, Buffers&) {
    const Weight& weight = *job.weight;
    const __m512i levels = _mm512_loadu_si512(weight.levels);
    const int64_t distance = prefetch_distance;
    const auto multiply =
        distance ? dot_rows<Kind::int4, INT4_ROWS, 1, true> : dot_rows<Kind::int4, INT4_ROWS, 0, true>;
    for (int64_t panel = first; panel < last; ++panel) {
        const uint8_t* records = weight.records + panel * weight.panel_bytes();
        multiply(job.rows, job, 0, panel, records, levels, {records + distance});
    }
}

// bf16 by any number of rows: panel by panel, while the next one is fetched.
BLADE_AVX512_BF16 static void multiply_bf16_dot(const Job& job, int64_t first, int64_t last, Buffers&) {
    const Weight& weight = *job.weight;
    const int64_t panel_bytes = weight.panel_bytes(), distance = prefetch_distance, block_rows = dot_block_rows(weight);
    const __m512i none = _mm512_setzero_si512();
    for (int64_t block = 0; block < job.rows; block += block_rows) {
        const int64_t end = std::min(job.rows, block + block_rows), rows = end - block;
        for (int64_t panel = first; panel < last; ++panel) {
            const uint8_t *records = weight.records + panel * panel_bytes, *next = records + panel_bytes;
            if (rows <= DOT_STREAM_ROWS) {
                if (distance)
                    dot_rows<Kind::bf16, DOT_STREAM_ROWS, 1, true>(rows, job, block, panel, records, none, {records + distance});
                else
                    dot_rows<Kind::bf16, DOT_STREAM_ROWS, 0, true>(rows, job, block, panel, records, none, {});
            } else if (rows <= DOT_ROWS) {
                dot_rows<Kind::bf16, DOT_ROWS, 1, true>(rows, job, block, panel, records, none, {next});
            } else {
                for (int64_t row = block; row < end; row += DOT_ROWS) {
                    const int64_t some = std::min<int64_t>(DOT_ROWS, end - row);
                    if (row < block + 2 * DOT_ROWS)  // half of it each
                        dot_rows<Kind::bf16, DOT_ROWS, 2, false>(some, job, row, panel, records, none, {next}), next += panel_bytes / 2;
                    else
                        dot_rows<Kind::bf16, DOT_ROWS, 0, false>(some, job, row, panel, records, none, {});
                }
            }
        }
    }
}

// Add ROWS rows by so many steps to ``to``, PANEL sums a row; ``fresh``: to nothing.
template <int ROWS>
BLADE_AVX512_BF16 static void dot_part(
    float* to, const bf16* x, int64_t x_stride, const bf16* tiles, int64_t steps, bool fresh) {
    __m512 sums[ROWS][2];
    Fetch nothing{};
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
        for (int tile = 0; tile < 2; ++tile)
            sums[i][tile] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(to + i * PANEL + tile * 16);
    for (; steps > 0; --steps, x += STEP, tiles += 2 * TILE_WORDS)
        dot_tiles<ROWS, 0, false>(sums, x, x_stride, tiles, nothing);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
        for (int tile = 0; tile < 2; ++tile) _mm512_storeu_ps(to + i * PANEL + tile * 16, sums[i][tile]);
}

template <int MOST>
BLADE_AVX512_BF16 static inline void dot_part_rows(
    int64_t rows, float* to, const bf16* x, int64_t x_stride, const bf16* tiles, int64_t steps, bool fresh) {
    if constexpr (MOST > 1)
        if (rows < MOST) return dot_part_rows<MOST - 1>(rows, to, x, x_stride, tiles, steps, fresh);
    dot_part<MOST>(to, x, x_stride, tiles, steps, fresh);
}

// Quantised weights by any number of rows: all of a block pass by a few records that were unpacked and stay in L1.
template <Kind KIND>
BLADE_AVX512_BF16 static void multiply_unpacked_dot(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    const Weight& weight = *job.weight;
    const Tables tables(weight);
    const int64_t all_steps = weight.steps(), block_rows = dot_block_rows(weight);
    bf16* unpacked = buffers.unpacked.get(DOT_STEPS * UNPACKED_RECORD);
    float* sums = buffers.sums.get(std::min(job.rows, block_rows) * PANEL * sizeof(float));
    for (int64_t block = 0; block < job.rows; block += block_rows) {
        const int64_t rows = std::min(block_rows, job.rows - block), groups = (rows + DOT_ROWS - 1) / DOT_ROWS;
        for (int64_t panel = first; panel < last; ++panel) {
            const uint8_t* records = weight.records + panel * weight.panel_bytes();
            for (int64_t step = 0; step < all_steps; step += DOT_STEPS) {
                const int64_t steps = std::min(DOT_STEPS, all_steps - step);
                const int64_t lines = (steps * record_bytes(KIND) / 64 + groups - 1) / groups;
                for (int64_t i = 0; i < steps; ++i, records += record_bytes(KIND))
                    unpack_record<KIND>(records, unpacked + i * 2 * TILE_WORDS, tables);
                Fetch fetch{records};
                for (int64_t row = 0; row < rows; row += DOT_ROWS) {
                    fetch.lines(lines);
                    dot_part_rows<DOT_ROWS>(
                        std::min<int64_t>(DOT_ROWS, rows - row), sums + row * PANEL,
                        job.x + (block + row) * job.x_stride + step * STEP, job.x_stride, unpacked, steps, step == 0);
                }
            }
            const Epilogue epilogue(weight, panel);
            for (int64_t row = 0; row < rows; ++row) {
                const float* sum = sums + row * PANEL;
                epilogue.store(
                    job.y + (block + row) * job.y_stride + panel * PANEL, _mm512_loadu_ps(sum), _mm512_loadu_ps(sum + 16));
            }
        }
    }
}

}  // namespace blade
