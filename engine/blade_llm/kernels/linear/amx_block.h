// A block of 32 rows by 32 outputs in AMX tiles, of floats or of integers.
//
// Tiles 0-3: sums of (rows 0-15, outputs 0-15), (0-15, 16-31), (16-31, 0-15), (16-31, 16-31); 4, 5: inputs of the upper and
// of the lower rows; 6, 7: weights of the two halves of the outputs.
#pragma once

#include <algorithm>

#include "amx.h"
#include "layout.h"

namespace blade {

constexpr int AMX_ROWS = 32;
constexpr int AMX_SUMS = AMX_ROWS * PANEL;
constexpr int AMX_SUMS_STRIDE = PANEL * 4;  // bytes

// ``rows``: of the block, at most 32; LOWER below: more than 16.
BLADE_AMX static inline void configure_block(int rows) {
    TileConfig config;
    const int upper = std::min(rows, 16), lower = std::max(rows - 16, 1);
    for (int tile : {0, 1, 4}) config.set(tile, upper, 64);
    for (int tile : {2, 3, 5}) config.set(tile, lower, 64);
    for (int tile : {6, 7}) config.set(tile, 16, 64);
    load_tile_config(config);
}

// Go on with ``sums`` (32 x 32, of 4 bytes each), or from zero.
template <bool LOWER, class T>
BLADE_AMX static inline void begin_sums(const T* sums, bool resume) {
    static_assert(sizeof(T) == 4);
    if (resume) {
        _tile_loadd(0, sums, AMX_SUMS_STRIDE);
        _tile_loadd(1, sums + 16, AMX_SUMS_STRIDE);
        if constexpr (LOWER) {
            _tile_loadd(2, sums + 16 * PANEL, AMX_SUMS_STRIDE);
            _tile_loadd(3, sums + 16 * PANEL + 16, AMX_SUMS_STRIDE);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (LOWER) {
            _tile_zero(2);
            _tile_zero(3);
        }
    }
}

template <bool LOWER, class T>
BLADE_AMX static inline void store_sums(T* sums) {
    static_assert(sizeof(T) == 4);
    _tile_stored(0, sums, AMX_SUMS_STRIDE);
    _tile_stored(1, sums + 16, AMX_SUMS_STRIDE);
    if constexpr (LOWER) {
        _tile_stored(2, sums + 16 * PANEL, AMX_SUMS_STRIDE);
        _tile_stored(3, sums + 16 * PANEL + 16, AMX_SUMS_STRIDE);
    }
}

}  // namespace blade
