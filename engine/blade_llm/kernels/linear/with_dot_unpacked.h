// Quantised weights by any number of rows with AVX512-BF16 dot products: unpacked piece by piece into L1.
#pragma once

#include "unpack.h"
#include "with_dot.h"

namespace blade {

constexpr int64_t DOT_STEPS = 8;  // records that are unpacked at a time: 16 KiB, half of L1

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
        dot_tiles<ROWS, false>(sums, x, x_stride, tiles, nothing);
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

// All rows of a block pass by a few records; the next ones are fetched meanwhile.
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
            const Panel<KIND> records(weight, panel);
            for (int64_t step = 0; step < all_steps; step += DOT_STEPS) {
                const int64_t steps = std::min(DOT_STEPS, all_steps - step);
                for (int64_t i = 0; i < steps; ++i)
                    unpack_record<KIND>(records, step + i, unpacked + i * 2 * TILE_WORDS, tables);
                Fetch fetch{records.record(step + steps)};
                const int64_t bytes = fetch.next - records.record(step), lines = (bytes / 64 + groups - 1) / groups;
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
