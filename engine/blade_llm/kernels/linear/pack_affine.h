// From integers, scales and zero points, as checkpoints have them, to records: nothing is rounded.
#pragma once

#include <algorithm>

#include "pack.h"

namespace blade {

// As _Integers in native.py. Row-major and contiguous. float8: the values are the bytes of e4m3, without shift.
struct Integers {
    const uint8_t* values;  // [outputs, inputs]
    const uint8_t* scales;  // [outputs, groups] of the weight's scale type
    const int8_t* zeros;    // [outputs, groups] above the middle, or null
    int32_t shift;          // added to every value: brings another middle to 8 or 128
};

// The 32 x 32 block that a record holds, zeros beyond the edges.
static inline void fetch_integers(
    const Weight& weight, const Integers& source, int64_t panel, int64_t step, uint8_t (&block)[PANEL][STEP]) {
    const int64_t rows = std::min<int64_t>(PANEL, weight.outputs - panel * PANEL);
    const int64_t columns = std::min<int64_t>(STEP, weight.inputs - step * STEP);
    if (rows < PANEL || columns < STEP) memset(block, 0, sizeof block);
    for (int64_t row = 0; row < rows; ++row) {
        const uint8_t* from = source.values + (panel * PANEL + row) * weight.inputs + step * STEP;
        for (int64_t i = 0; i < columns; ++i) block[row][i] = static_cast<uint8_t>(from[i] + source.shift);
    }
}

static void pack_affine_panel(const Weight& weight, const Integers& source, int64_t panel) {
    const int64_t steps = weight.steps(), group_steps = weight.group_steps ? weight.group_steps : steps;
    const int64_t groups = (steps + group_steps - 1) / group_steps, scale_bytes = weight.scale_bytes() / PANEL;
    const int64_t first = panel * PANEL, rows = std::min<int64_t>(PANEL, weight.outputs - first);
    uint8_t* record = weight.records + panel * weight.panel_bytes();
    uint8_t block[PANEL][STEP];
    for (int64_t group = 0; group < groups; ++group) {
        const int64_t end = std::min(steps, (group + 1) * group_steps);
        for (int64_t step = group * group_steps; step < end; ++step, record += value_bytes(weight.kind)) {
            fetch_integers(weight, source, panel, step, block);
            if (weight.kind == Kind::w8a8)
                pack_w8a8(block, weight.records + panel * weight.panel_bytes(), step, steps);
            else if (weight.kind == Kind::float8)
                pack_float8(block, record);
            else if (weight.kind == Kind::affine4)
                pack_nibbles(block, record);
            else
                pack_bytes(block, record);
        }
        if (!weight.group_steps) continue;  // scales of outputs are elsewhere
        memset(record, 0, weight.group_bytes());
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t at = (first + row) * groups + group;
            memcpy(record + row * scale_bytes, source.scales + at * scale_bytes, scale_bytes);
            if (source.zeros) record[weight.scale_bytes() + row] = static_cast<uint8_t>(source.zeros[at]);
        }
        record += weight.group_bytes();
    }
}

}  // namespace blade
