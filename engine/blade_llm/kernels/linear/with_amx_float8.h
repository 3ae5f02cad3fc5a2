// float8 with AMX: e4m3 becomes bf16, which changes no value, and products are exact.
//
// As in with_dot_float8.h, sums run over the inputs of a segment, which have one scale of the weight and one of the
// activations, and are scaled and added to the total at its end.
#pragma once

#include <algorithm>

#include "with_amx.h"
#include "with_dot_float8.h"

namespace blade {

// 32 rows or fewer of one panel, over one stretch of the inputs, all in one segment. What was summed of it before is in
// ``sums``, what was scaled in ``totals``; the outputs are written after the last stretch.
BLADE_AMX static inline void multiply_float8_sub(
    const Job& job, const Segments& segments, int64_t row, int rows, int64_t panel, int64_t begin,
    const Stretch<Kind::float8>& stretch, const Tables& tables, float* sums, float* totals) {
    const bf16* x = job.x + row * job.x_stride + stretch.first * STEP;
    const bool resume = stretch.first > begin;
    if (rows > 16)
        stretch_sums<Kind::float8, true>(stretch, x, job.x_stride, tables, sums, resume);
    else
        stretch_sums<Kind::float8, false>(stretch, x, job.x_stride, tables, sums, resume);
    const int64_t end = stretch.first + stretch.steps;
    if (end == segments.end(begin)) add_segment(job, segments, stretch.panel, begin, row, rows, sums, totals);
    if (end == segments.steps) store_totals(job, row, rows, panel, totals);
}

// Divided as in multiply_amx().
BLADE_AMX static void multiply_float8_amx(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    const Weight& weight = *job.weight;
    const Tables tables(weight);
    const Segments segments(weight);
    const Blocking blocking(job.rows, segments.end(0));
    const int64_t waiting = blocking.subs() * blocking.panels * AMX_SUMS;
    bf16* unpacked = buffers.unpacked.get(blocking.steps * UNPACKED_RECORD);
    float* sums = buffers.sums.get(2 * waiting * sizeof(float));
    int configured = 0;
    for (int64_t block = 0; block < job.rows; block += blocking.rows)
        for (int64_t group = first; group < last; group += blocking.panels) {
            const int64_t block_end = std::min(job.rows, block + blocking.rows);
            const int64_t group_end = std::min(last, group + blocking.panels);
            const bool keep = block_end - block > AMX_ROWS;
            int64_t begin = 0;
            for (int64_t step = 0; step < segments.steps;) {
                const int64_t steps = std::min(blocking.steps, segments.end(begin) - step);
                float* own = sums;
                for (int64_t panel = group; panel < group_end; ++panel) {
                    const Panel<Kind::float8> records(weight, panel);
                    for (int64_t row = block; row < block_end; row += AMX_ROWS, own += AMX_SUMS) {
                        const int rows = static_cast<int>(std::min<int64_t>(AMX_ROWS, block_end - row));
                        if (rows != configured) configure_block(configured = rows);
                        const Stretch<Kind::float8> stretch{
                            records, step, unpacked, steps, row == block, keep, nullptr, 0};
                        multiply_float8_sub(
                            job, segments, row, rows, panel, begin, stretch, tables, own, own + waiting);
                    }
                }
                step += steps;
                if (step == segments.end(begin)) begin = step;
            }
        }
    _tile_release();
}

}  // namespace blade
