// w8a8 with AMX: 32 rows by 32 outputs, 64 inputs at a time, summed exactly in 32 bits.
#pragma once

#include <algorithm>

#include "amx.h"
#include "with_bytes.h"

namespace blade {

constexpr int AMX_BYTE_ROWS = 32;
constexpr int64_t AMX_BYTE_BLOCK = 256;  // rows that stay in L2 while panels pass by
constexpr int64_t AMX_BYTE_PREFETCH = 3072;

// Tiles 0-3: sums of (rows 0-15, outputs 0-15), (0-15, 16-31), (16-31, 0-15), (16-31, 16-31); 4, 5: inputs; 6, 7: weight.
BLADE_AMX static inline void configure_bytes(int rows) {
    TileConfig config;
    const int upper = std::min(rows, 16), lower = std::max(rows - 16, 1);
    for (int tile : {0, 1, 4}) config.set(tile, upper, 64);
    for (int tile : {2, 3, 5}) config.set(tile, lower, 64);
    for (int tile : {6, 7}) config.set(tile, 16, 64);
    load_tile_config(config);
}

// Add records of as many rows as are configured to ``sums``, 32 x 32. ``few``: weights come from memory.
template <bool LOWER>
BLADE_AMX static inline void bytes_sums(
    const int8_t* x, int64_t x_stride, const uint8_t* record, int64_t records, int32_t* sums, bool few) {
    const int8_t* lower = x + 16 * x_stride;
    _tile_loadd(0, sums, 128);
    _tile_loadd(1, sums + 16, 128);
    if constexpr (LOWER) {
        _tile_loadd(2, sums + 16 * PANEL, 128);
        _tile_loadd(3, sums + 16 * PANEL + 16, 128);
    }
    for (; records > 0; --records, record += W8A8_RECORD, x += W8A8_INPUTS, lower += W8A8_INPUTS) {
        if (few)
            for (int at = 0; at < W8A8_RECORD; at += 64) _mm_prefetch(record + AMX_BYTE_PREFETCH + at, _MM_HINT_T0);
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
    }
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + 16, 128);
    if constexpr (LOWER) {
        _tile_stored(2, sums + 16 * PANEL, 128);
        _tile_stored(3, sums + 16 * PANEL + 16, 128);
    }
}

// For each block of rows and panel, some records at a time: they stay in L1 while the rows pass by, whose sums wait in L2.
BLADE_AMX static void multiply_bytes_amx(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    const Weight& weight = *job.weight;
    const int64_t all = w8a8_records(weight), block_rows = std::min(job.rows, AMX_BYTE_BLOCK);
    const int64_t padded = (block_rows + AMX_BYTE_ROWS - 1) / AMX_BYTE_ROWS * AMX_BYTE_ROWS;
    int32_t* sums = reinterpret_cast<int32_t*>(buffers.sums.get(padded * PANEL * sizeof(int32_t)));
    int configured = 0;
    for (int64_t block = 0; block < job.rows; block += block_rows) {
        const int64_t rows = std::min(block_rows, job.rows - block);
        const bool few = rows <= AMX_BYTE_ROWS;
        for (int64_t panel = first; panel < last; ++panel) {
            for (int64_t row = 0; row < rows; ++row)
                std::fill_n(sums + row * PANEL, PANEL, job.offsets[block + row]);
            const uint8_t* record = weight.records + panel * weight.panel_bytes();
            const int64_t stretch = few ? all : BYTE_RECORDS;
            for (int64_t at = 0; at < all; at += stretch)
                for (int64_t row = 0; row < rows; row += AMX_BYTE_ROWS) {
                    const int count = static_cast<int>(std::min<int64_t>(AMX_BYTE_ROWS, rows - row));
                    if (count != configured) configure_bytes(configured = count);
                    const int8_t* x = job.bytes + (block + row) * job.x_stride + at * W8A8_INPUTS;
                    const int64_t records = std::min(stretch, all - at);
                    if (count > 16)
                        bytes_sums<true>(x, job.x_stride, record + at * W8A8_RECORD, records, sums + row * PANEL, few);
                    else
                        bytes_sums<false>(x, job.x_stride, record + at * W8A8_RECORD, records, sums + row * PANEL, few);
                }
            const Epilogue epilogue(weight, panel);
            for (int64_t row = 0; row < rows; ++row) {
                const int32_t* sum = sums + row * PANEL;
                store_bytes_row(
                    epilogue, job, block + row, panel, _mm512_loadu_si512(sum), _mm512_loadu_si512(sum + 16));
            }
        }
    }
    _tile_release();
}

}  // namespace blade
