// Multiplication with AMX: 32 rows by 32 outputs are summed over all inputs in four tile registers.
//
// Every sum runs over the inputs in order in one register, so a row's result does not depend on the rows around it. Those
// of float8 leave it at the end of each segment, to be scaled and added to the total.
#pragma once

#include <algorithm>

#include "amx_block.h"
#include "epilogue.h"
#include "unpack.h"
#include "with_dot_float8.h"

namespace blade {

constexpr int UNPACK_AHEAD = 8;             // records unpacked at a time: 16 KiB, a third of L1
constexpr int64_t PREFETCH_BYTES = 3072;
constexpr int STREAM = UNPACKED_RECORD / 64;  // lines that a step of bf16 weights takes

// Which part of the work is done at a time.
struct Blocking {
    int64_t rows, panels, steps;

    Blocking(int64_t all_rows, int64_t all_steps) : rows(256), panels(8), steps(all_steps) {
        if (all_rows <= AMX_ROWS) {  // bound by memory: read it in the order in which it lies
            rows = AMX_ROWS;
            panels = 1;
        } else {
            const int64_t stretches = (all_steps + 7) / 8;  // 16 KiB of a panel, 16 KiB of the rows
            steps = (all_steps + stretches - 1) / stretches;
        }
    }

    int64_t subs() const { return rows / AMX_ROWS; }
};

// Add steps [0, steps) of ``tiles``; ``prefetch``: lines to fetch per step, spread over the stream at ``next``.
template <bool LOWER>
BLADE_AMX static inline void accumulate(
    const bf16* x, int64_t x_stride, const bf16* tiles, int64_t steps, const uint8_t* next, int lines) {
    const int64_t stride = x_stride * static_cast<int64_t>(sizeof(bf16));
    const bf16* lower = x + 16 * x_stride;
    for (int64_t step = 0; step < steps; ++step) {
        _tile_loadd(4, x, stride);
        _tile_loadd(6, tiles, 64);
        _tile_loadd(7, tiles + TILE_WORDS, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (LOWER) {
            _tile_loadd(5, lower, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            lower += STEP;
        }
        if (lines == STREAM)  // one after another, as memory is the limit
            for (int line = 0; line < STREAM; ++line) _mm_prefetch(next + line * 64, _MM_HINT_T0);
        else
            for (int line = 0; line < lines; ++line) _mm_prefetch(next + line * 64, _MM_HINT_T1);
        next += lines * 64;
        x += STEP;
        tiles += 2 * TILE_WORDS;
    }
}

// Steps of one panel, of which the records may be unpacked already.
template <Kind KIND>
struct Stretch {
    Panel<KIND> panel;
    int64_t first;  // step
    bf16* unpacked;
    int64_t steps;
    bool unpack, keep;  // keep what is unpacked, for rows that follow
    const uint8_t* next;  // to prefetch, as in accumulate()
    int lines;
};

// 32 rows (or fewer, as configured) by a stretch. ``sums``: 32 x 32, continued if ``resume``.
template <Kind KIND, bool LOWER>
BLADE_AMX static inline void stretch_sums(
    const Stretch<KIND>& stretch, const bf16* x, int64_t x_stride, const Tables& tables, float* sums, bool resume) {
    begin_sums<LOWER>(sums, resume);
    if constexpr (KIND == Kind::bf16) {
        const bf16* tiles = reinterpret_cast<const bf16*>(stretch.panel.record(stretch.first));
        accumulate<LOWER>(x, x_stride, tiles, stretch.steps, stretch.next, stretch.lines);
    } else if (!stretch.unpack) {
        accumulate<LOWER>(x, x_stride, stretch.unpacked, stretch.steps, stretch.next, 0);
    } else {
        bf16* unpacked = stretch.unpacked;
        for (int64_t step = 0; step < stretch.steps; step += UNPACK_AHEAD) {
            const int64_t count = std::min<int64_t>(UNPACK_AHEAD, stretch.steps - step);
            for (int64_t i = step; i < step + count; ++i) {
                const uint8_t* ahead = stretch.panel.record(stretch.first + i) + PREFETCH_BYTES;
                for (int at = 0; at < value_bytes(KIND); at += 64) _mm_prefetch(ahead + at, _MM_HINT_T0);
                if constexpr (KIND == Kind::int4) _mm_prefetch(ahead + VALUE_BYTES_4, _MM_HINT_T0);
                unpack_record<KIND>(stretch.panel, stretch.first + i, unpacked + (i - step) * 2 * TILE_WORDS, tables);
            }
            accumulate<LOWER>(x + step * STEP, x_stride, unpacked, count, stretch.next, 0);
            if (stretch.keep) unpacked += count * 2 * TILE_WORDS;
        }
    }
    store_sums<LOWER>(sums);
}

// 32 rows or fewer of one panel, over one stretch of the inputs, in the segment that begins with step ``begin``. What was
// summed of it before is in ``sums``, of float8's segments before it in ``totals``; the outputs are written after the last
// stretch.
template <Kind KIND>
BLADE_AMX static inline void multiply_sub(
    const Job& job, const Segments& segments, int64_t begin, int64_t row, int rows, int64_t panel,
    const Stretch<KIND>& stretch, const Tables& tables, float* sums, float* totals) {
    const bf16* x = job.x + row * job.x_stride + stretch.first * STEP;
    const bool resume = stretch.first > begin;
    if (rows > 16)
        stretch_sums<KIND, true>(stretch, x, job.x_stride, tables, sums, resume);
    else
        stretch_sums<KIND, false>(stretch, x, job.x_stride, tables, sums, resume);
    const int64_t end = stretch.first + stretch.steps;
    if constexpr (KIND == Kind::float8)
        if (end == segments.end(begin)) add_segment(job, segments, stretch.panel, begin, row, rows, sums, totals);
    if (end == segments.steps) store_totals(job, row, rows, panel, KIND == Kind::float8 ? totals : sums);
}

// At most 16 rows of two panels at once: every tile of inputs that is loaded serves four tiles of the weight. Tiles 5-7
// take turns with the weight.
BLADE_AMX static inline void accumulate_pair(
    const bf16* x, int64_t x_stride, const bf16* tiles, int64_t panel_words, int64_t steps) {
    const int64_t stride = x_stride * static_cast<int64_t>(sizeof(bf16));
    const uint8_t* next = reinterpret_cast<const uint8_t*>(tiles) + PREFETCH_BYTES;
    for (int64_t step = 0; step < steps; ++step) {
        _tile_loadd(4, x, stride);
        _tile_loadd(5, tiles, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, tiles + TILE_WORDS, 64);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, tiles + panel_words, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, tiles + panel_words + TILE_WORDS, 64);
        _tile_dpbf16ps(3, 4, 5);
        for (int line = 0; line < STREAM; ++line) {
            _mm_prefetch(next + line * 64, _MM_HINT_T0);
            _mm_prefetch(next + panel_words * 2 + line * 64, _MM_HINT_T0);
        }
        next += STREAM * 64;
        x += STEP;
        tiles += 2 * TILE_WORDS;
    }
}

// bf16 weights by at most 16 rows, panels [first, last) by twos; returns the first panel left over.
BLADE_AMX static int64_t multiply_pairs(const Job& job, int64_t first, int64_t last, float* sums) {
    const Weight& weight = *job.weight;
    const int rows = static_cast<int>(job.rows);
    TileConfig config;
    for (int tile : {0, 1, 2, 3, 4}) config.set(tile, rows, 64);
    for (int tile : {5, 6, 7}) config.set(tile, 16, 64);
    load_tile_config(config);
    int64_t panel = first;
    for (; panel + 1 < last; panel += 2) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        const bf16* tiles = reinterpret_cast<const bf16*>(weight.records + panel * weight.panel_bytes());
        accumulate_pair(job.x, job.x_stride, tiles, weight.panel_bytes() / 2, weight.steps());
        _tile_stored(0, sums, 256);
        _tile_stored(1, sums + 16, 256);
        _tile_stored(2, sums + 32, 256);
        _tile_stored(3, sums + 48, 256);
        for (int64_t half = 0; half < 2; ++half) {
            const Epilogue epilogue(weight, panel + half);
            bf16* y = job.y + (panel + half) * PANEL;
            const float* row = sums + half * PANEL;
            for (int i = 0; i < rows; ++i, y += job.y_stride, row += 2 * PANEL)
                epilogue.store(y, _mm512_load_ps(row), _mm512_load_ps(row + 16));
        }
    }
    _tile_release();
    return panel;
}

// For each block of rows and group of panels, stretch by stretch of the inputs: a stretch of a panel stays in L1 while
// the rows pass by. Between stretches the sums wait in L2, in fp32, which changes no bit of them.
template <Kind KIND>
BLADE_AMX static void multiply_amx(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    const Weight& weight = *job.weight;
    const Tables tables(weight);
    const Segments segments(weight);
    const Blocking blocking(job.rows, segments.end(0));
    bf16* unpacked = KIND == Kind::bf16 ? nullptr : buffers.unpacked.get(blocking.steps * UNPACKED_RECORD);
    const int64_t all_sums = blocking.subs() * blocking.panels * AMX_SUMS;
    float* sums = buffers.sums.get((KIND == Kind::float8 ? 2 : 1) * all_sums * sizeof(float));
    if constexpr (KIND == Kind::bf16)
        if (job.rows <= 16) first = multiply_pairs(job, first, last, sums);
    int configured = 0;
    for (int64_t block = 0; block < job.rows; block += blocking.rows)
        for (int64_t group = first; group < last; group += blocking.panels) {
            int64_t begin = 0, steps = 0;
            for (int64_t step = 0; step < segments.steps; step += steps) {
                if (step == segments.end(begin)) begin = step;
                steps = std::min(blocking.steps, segments.end(begin) - step);
                const int64_t block_end = std::min(job.rows, block + blocking.rows);
                const int64_t group_end = std::min(last, group + blocking.panels);
                const int64_t subs = (block_end - block + AMX_ROWS - 1) / AMX_ROWS;
                float* waiting = sums;
                for (int64_t panel = group; panel < group_end; ++panel) {
                    const Panel<KIND> records(weight, panel);
                    // Few rows: memory is the limit, so fetch just ahead. Many: fetch the next panel meanwhile.
                    const int lines = static_cast<int>((STREAM + subs - 1) / subs);
                    const uint8_t* next = records.record(step) + (subs == 1 ? PREFETCH_BYTES : weight.panel_bytes());
                    for (int64_t sub = 0; sub < subs; ++sub, waiting += AMX_SUMS) {
                        const int64_t row = block + sub * AMX_ROWS;
                        const int rows = static_cast<int>(std::min<int64_t>(AMX_ROWS, block_end - row));
                        if (rows != configured) configure_block(configured = rows);
                        const uint8_t* part = next + sub * lines * 64 * steps;
                        const Stretch<KIND> stretch{records, step, unpacked, steps, sub == 0, subs > 1, part, lines};
                        float* totals = waiting + all_sums;
                        multiply_sub<KIND>(job, segments, begin, row, rows, panel, stretch, tables, waiting, totals);
                    }
                }
            }
        }
    _tile_release();
}

}  // namespace blade
