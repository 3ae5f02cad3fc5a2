// int8 weights by few rows with AMX, in integers, without making the weights bf16 first.
//
// Weights are stored as unsigned bytes, 128 too large, which is what the instructions take; 128 times the sum of the
// activations is subtracted in the end.
#pragma once

#include <algorithm>

#include "amx.h"
#include "epilogue.h"
#include "halves.h"

namespace blade {

constexpr int INT8_AMX_ROWS = INTEGER_BLOCK;  // more are multiplied in bf16
constexpr int64_t INT8_PREFETCH = 2048;

// The sums of one row and one tile, from both halves.
BLADE_AVX512_BF16 static inline __m512 joined(const Halves& inputs, int64_t row, __m512i high, __m512i low) {
    __m512 upper = _mm512_cvtepi32_ps(_mm512_sub_epi32(high, _mm512_set1_epi32(128 * inputs.high_sum[row])));
    __m512 lower = _mm512_cvtepi32_ps(_mm512_sub_epi32(low, _mm512_set1_epi32(128 * inputs.low_sum[row])));
    return _mm512_mul_ps(_mm512_fmadd_ps(upper, _mm512_set1_ps(256.0f), lower), _mm512_set1_ps(inputs.scale[row]));
}

// 16 rows at a time with AMX. Tiles 0, 1: sums of the high halves; 2, 3: of the low; 4, 5: inputs; 6, 7: weights.
BLADE_AMX static void multiply_int8_amx(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    Halves inputs;
    split_inputs(job, buffers.bytes.get(2 * job.rows * job.weight->steps() * STEP), inputs);
    const int64_t steps = job.weight->steps();
    alignas(64) int32_t sums[4][16 * 16];
    int configured = 0;
    for (int64_t panel = first; panel < last; ++panel) {
        const Epilogue epilogue(*job.weight, panel);
        for (int64_t row = 0; row < job.rows; row += 16) {
            const int rows = static_cast<int>(std::min<int64_t>(16, job.rows - row));
            if (rows != configured) {
                TileConfig config;
                for (int tile = 0; tile < 4; ++tile) config.set(tile, rows, 64);
                for (int tile : {4, 5}) config.set(tile, rows, STEP);
                for (int tile : {6, 7}) config.set(tile, 8, 64);
                load_tile_config(config);
                configured = rows;
            }
            const uint8_t* record = job.weight->records + panel * job.weight->panel_bytes();
            const int8_t *upper = inputs.high + row * inputs.width, *lower = inputs.low + row * inputs.width;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t step = 0; step < steps; ++step, record += 1024, upper += STEP, lower += STEP) {
                if (row == 0)
                    for (int at = 0; at < 1024; at += 64) _mm_prefetch(record + INT8_PREFETCH + at, _MM_HINT_T0);
                _tile_loadd(4, upper, inputs.width);
                _tile_loadd(6, record, 64);
                _tile_dpbsud(0, 4, 6);
                _tile_loadd(7, record + 512, 64);
                _tile_dpbsud(1, 4, 7);
                _tile_loadd(5, lower, inputs.width);
                _tile_dpbsud(2, 5, 6);
                _tile_dpbsud(3, 5, 7);
            }
            _tile_stored(0, sums[0], 64);
            _tile_stored(1, sums[1], 64);
            _tile_stored(2, sums[2], 64);
            _tile_stored(3, sums[3], 64);
            for (int i = 0; i < rows; ++i) {
                __m512i part[4];
                for (int tile = 0; tile < 4; ++tile) part[tile] = _mm512_load_si512(sums[tile] + i * 16);
                epilogue.store(
                    job.y + (row + i) * job.y_stride + panel * PANEL, joined(inputs, row + i, part[0], part[2]),
                    joined(inputs, row + i, part[1], part[3]));
            }
        }
    }
    _tile_release();
}

}  // namespace blade
