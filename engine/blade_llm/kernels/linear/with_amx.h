// Multiplication with AMX: 32 rows by 32 outputs are summed over all inputs in four tile registers.
//
// Every sum runs over the inputs in order in one register, so a row's result does not depend on the rows around it.
#pragma once

#include <algorithm>

#include "amx.h"
#include "epilogue.h"
#include "unpack.h"

namespace blade {

constexpr int AMX_ROWS = 32;
constexpr int UNPACK_AHEAD = 8;             // records unpacked at a time: 16 KiB, a third of L1
constexpr int64_t PREFETCH_BYTES = 4096;

// Tiles 0-3: sums of (rows 0-15, outputs 0-15), (0-15, 16-31), (16-31, 0-15), (16-31, 16-31); 4, 5: inputs; 6, 7: weight.
BLADE_AMX static inline void configure(int rows) {
    TileConfig config;
    int upper = std::min(rows, 16), lower = std::max(rows - 16, 1);
    for (int tile : {0, 1, 4}) config.set(tile, upper, 64);
    for (int tile : {2, 3, 5}) config.set(tile, lower, 64);
    for (int tile : {6, 7}) config.set(tile, 16, 64);
    load_tile_config(config);
}

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
        for (int line = 0; line < lines; ++line) _mm_prefetch(next + line * 64, _MM_HINT_T0);
        next += lines * 64;
        x += STEP;
        tiles += 2 * TILE_WORDS;
    }
}

// 32 rows (or fewer, as configured) by one panel. ``unpack``: the panel's records are still to be unpacked to ``tiles``.
template <Kind KIND, bool LOWER>
BLADE_AMX static inline void panel_sums(
    const Weight& weight, const bf16* x, int64_t x_stride, const uint8_t* records, bf16* unpacked, bool unpack,
    const uint8_t* next, int lines, const Int8Tables& tables, __m512i levels, float* sums) {
    const int64_t steps = weight.steps();
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (LOWER) {
        _tile_zero(2);
        _tile_zero(3);
    }
    if constexpr (KIND == Kind::bf16) {
        accumulate<LOWER>(x, x_stride, reinterpret_cast<const bf16*>(records), steps, next, lines);
    } else if (!unpack) {
        accumulate<LOWER>(x, x_stride, unpacked, steps, next, 0);
    } else {
        constexpr int bytes = record_bytes(KIND);
        for (int64_t step = 0; step < steps; step += UNPACK_AHEAD) {
            int64_t count = std::min<int64_t>(UNPACK_AHEAD, steps - step);
            for (int64_t i = step; i < step + count; ++i) {
                for (int at = 0; at < bytes; at += 64) _mm_prefetch(records + i * bytes + PREFETCH_BYTES + at, _MM_HINT_T0);
                unpack_record<KIND>(records + i * bytes, unpacked + i * 2 * TILE_WORDS, tables, levels);
            }
            accumulate<LOWER>(x + step * STEP, x_stride, unpacked + step * 2 * TILE_WORDS, count, next, 0);
        }
    }
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + 16, 128);
    if constexpr (LOWER) {
        _tile_stored(2, sums + 16 * PANEL, 128);
        _tile_stored(3, sums + 16 * PANEL + 16, 128);
    }
}

template <Kind KIND>
BLADE_AMX static void multiply_amx(const Job& job, int64_t first, int64_t last, bf16* unpacked) {
    const Weight& weight = *job.weight;
    const int64_t panel_bytes = weight.panel_bytes();
    const Int8Tables tables = KIND == Kind::int8 ? int8_tables() : Int8Tables{};
    const __m512i levels = KIND == Kind::int4 ? _mm512_loadu_si512(weight.levels) : _mm512_setzero_si512();
    alignas(64) float sums[AMX_ROWS * PANEL];
    int configured = 0;
    for (int64_t block = 0; block < job.rows; block += job.block_rows) {
        const int64_t block_rows = std::min(job.block_rows, job.rows - block);
        const int64_t subs = (block_rows + AMX_ROWS - 1) / AMX_ROWS;
        for (int64_t panel = first; panel < last; ++panel) {
            const uint8_t* records = weight.records + panel * panel_bytes;
            const Epilogue epilogue(weight, panel);
            for (int64_t sub = 0; sub < subs; ++sub) {
                const int64_t row = block + sub * AMX_ROWS;
                const int rows = static_cast<int>(std::min<int64_t>(AMX_ROWS, block + block_rows - row));
                if (rows != configured) configure(configured = rows);
                // Few rows: memory is the limit, so fetch just ahead. Many: fetch the next panel while this one works.
                const int lines = subs == 1 ? 32 : static_cast<int>((32 + subs - 1) / subs);
                const uint8_t* next = subs == 1 ? records + PREFETCH_BYTES : records + panel_bytes + sub * lines * 64 * weight.steps();
                const bf16* x = job.x + row * job.x_stride;
                if (rows > 16)
                    panel_sums<KIND, true>(weight, x, job.x_stride, records, unpacked, sub == 0, next, lines, tables, levels, sums);
                else
                    panel_sums<KIND, false>(weight, x, job.x_stride, records, unpacked, sub == 0, next, lines, tables, levels, sums);
                bf16* y = job.y + row * job.y_stride + panel * PANEL;
                for (int i = 0; i < rows; ++i)
                    epilogue.store(y + i * job.y_stride, _mm512_load_ps(sums + i * PANEL), _mm512_load_ps(sums + i * PANEL + 16));
            }
        }
    }
    _tile_release();
}

}  // namespace blade
