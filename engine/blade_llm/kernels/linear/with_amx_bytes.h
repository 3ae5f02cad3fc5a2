// w8a8 with AMX: 32 rows by 32 outputs, 64 inputs at a time, summed exactly in 32 bits.
#pragma once

#include <algorithm>

#include "amx_block.h"
#include "with_bytes.h"

namespace blade {

constexpr int64_t AMX_BYTE_RECORDS = 10;       // of 32 rows: 20 KiB that stay in L1 while panels pass by
constexpr int64_t AMX_BYTE_GROUP = 1 << 19;    // bytes of panels that stay in L2 while rows pass by
constexpr int64_t AMX_BYTE_PREFETCH = 3072;
constexpr int AMX_BYTE_LINES = W8A8_RECORD / 64;

// Lines to fetch while records are multiplied.
struct Ahead {
    const uint8_t* at;
    int lines;  // with each record
    bool to_l1;
};

// Records of as many rows as are configured. ``sums``: 32 x 32, continued if ``resume``.
template <bool LOWER>
BLADE_AMX static inline void bytes_sums(
    const int8_t* x, int64_t x_stride, const uint8_t* record, int64_t records, int32_t* sums, bool resume, Ahead ahead) {
    const int8_t* lower = x + 16 * x_stride;
    begin_sums<LOWER>(sums, resume);
    for (; records > 0; --records, record += W8A8_RECORD, x += W8A8_INPUTS, lower += W8A8_INPUTS) {
        _tile_loadd(4, x, x_stride);
        _tile_loadd(6, record, 64);
        _tile_loadd(7, record + W8A8_RECORD / 2, 64);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        if constexpr (LOWER) {
            _tile_loadd(5, lower, x_stride);
            _tile_dpbsud(2, 5, 6);
            _tile_dpbsud(3, 5, 7);
        }
        if (ahead.to_l1)
            for (int line = 0; line < ahead.lines; ++line) _mm_prefetch(ahead.at + line * 64, _MM_HINT_T0);
        else
            for (int line = 0; line < ahead.lines; ++line) _mm_prefetch(ahead.at + line * 64, _MM_HINT_T1);
        ahead.at += ahead.lines * 64;
    }
    store_sums<LOWER>(sums);
}

// The outputs of some rows and a panel, from their sums without the rows' offsets.
BLADE_AVX512_BF16 static inline void store_bytes_rows(
    const Job& job, int64_t first, int rows, int64_t panel, const int32_t* sums) {
    const Epilogue epilogue(*job.weight, panel);
    for (int64_t row = first; row < first + rows; ++row, sums += PANEL) {
        const __m512i offset = _mm512_set1_epi32(job.offsets[row]);
        store_bytes_row(
            epilogue, job, row, panel, _mm512_add_epi32(offset, _mm512_load_si512(sums)),
            _mm512_add_epi32(offset, _mm512_load_si512(sums + 16)));
    }
}

// How the work is divided: panels in groups that fit L2, inputs in stretches of which those of 32 rows fit L1, both of
// about the same size each.
struct ByteBlocking {
    int64_t all, records, panels, subs;

    ByteBlocking(const Job& job, int64_t count) : all(w8a8_records(*job.weight)), records(all), panels(1) {
        subs = (job.rows + AMX_ROWS - 1) / AMX_ROWS;
        if (subs == 1) return;  // bound by memory: weights are read in the order in which they lie
        const int64_t stretches = (all + AMX_BYTE_RECORDS - 1) / AMX_BYTE_RECORDS;
        records = (all + stretches - 1) / stretches;
        const int64_t most = std::max<int64_t>(1, AMX_BYTE_GROUP / job.weight->panel_bytes());
        const int64_t groups = (count + most - 1) / most;
        panels = (count + groups - 1) / groups;
    }
};

// For each group of panels, 32 rows at a time, stretch by stretch of the inputs: these rows' inputs stay in L1 while the
// panels pass by, whose sums wait in L2. Meanwhile the next group is fetched, a part with each 32 rows.
BLADE_AMX static void multiply_bytes_amx(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    const Weight& weight = *job.weight;
    const int64_t panel_bytes = weight.panel_bytes();
    const ByteBlocking blocking(job, last - first);
    const int64_t all = blocking.all, subs = blocking.subs;
    int32_t* sums = reinterpret_cast<int32_t*>(buffers.sums.get(blocking.panels * AMX_SUMS * sizeof(int32_t)));
    int configured = 0;
    for (int64_t group = first; group < last; group += blocking.panels) {
        const int64_t end = std::min(last, group + blocking.panels);
        const int lines = end == last && subs > 1 ? 0 : static_cast<int>((AMX_BYTE_LINES + subs - 1) / subs);
        const int64_t distance = subs == 1 ? AMX_BYTE_PREFETCH : blocking.panels * panel_bytes;
        for (int64_t sub = 0; sub < subs; ++sub) {
            const int64_t row = sub * AMX_ROWS;
            const int rows = static_cast<int>(std::min<int64_t>(AMX_ROWS, job.rows - row));
            if (rows != configured) configure_block(configured = rows);
            for (int64_t at = 0; at < all; at += blocking.records) {
                const int8_t* x = job.bytes + row * job.x_stride + at * W8A8_INPUTS;
                const int64_t records = std::min(blocking.records, all - at);
                for (int64_t panel = group; panel < end; ++panel) {
                    const uint8_t* start = weight.records + panel * panel_bytes;
                    const Ahead ahead{start + distance + (sub * all + at) * lines * 64, lines, subs == 1};
                    int32_t* to = sums + (panel - group) * AMX_SUMS;
                    const auto add = rows > 16 ? bytes_sums<true> : bytes_sums<false>;
                    add(x, job.x_stride, start + at * W8A8_RECORD, records, to, at > 0, ahead);
                    if (at + records == all) store_bytes_rows(job, row, rows, panel, to);
                }
            }
        }
    }
    _tile_release();
}

}  // namespace blade
