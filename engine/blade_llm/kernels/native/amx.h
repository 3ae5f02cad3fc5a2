// AMX tile registers: eight of 16 rows by 64 bytes. A thread configures its own; the configuration survives until it is
// replaced, by us or by another library in the same thread (oneDNN), so every parallel region configures anew.
#pragma once

#include "isa.h"

namespace blade {

struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t columns_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int tile_rows, int bytes) {
        rows[tile] = static_cast<uint8_t>(tile_rows);
        columns_bytes[tile] = static_cast<uint16_t>(bytes);
    }
};

// gcc 12's intrinsic claims to read only 8 bytes: without the barrier it drops the stores that fill the structure.
BLADE_AMX static inline void load_tile_config(const TileConfig& config) {
    asm volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
}

}  // namespace blade
