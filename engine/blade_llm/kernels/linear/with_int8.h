// int8 weights by few rows in integers, without making the weights bf16 first.
//
// A row of activations becomes 16-bit integers with one scale: its largest value has 15 bits, seven more than in bf16, so
// what is lost of the others is less than what bf16 has already cost that one. Each integer is split into two signed
// bytes, high * 256 + low, and each half is multiplied by the weights exactly, in 32 bits. Weights are stored as unsigned
// bytes, 128 too large, which is what the instructions take; 128 times the sum of the activations is subtracted in the end.
#pragma once

#include <algorithm>

#include "amx.h"
#include "epilogue.h"
#include "stream.h"

namespace blade {

constexpr int INT8_ROWS = 32;      // more are multiplied in bf16
constexpr int INT8_DOT_ROWS = 2;   // with AMX, that many at most are left to dot products
constexpr int INT8_ONLY_DOT_ROWS = 7;  // without AMX, from the next on unpacking pays: with 16, 1.5 times as fast on Zen 4
constexpr int INT8_INPUTS = 65536;  // more could overflow a sum: 255 * 128 each
constexpr int64_t INT8_PREFETCH = 2048;  // of AMX

struct Int8Inputs {
    int8_t* high;  // [rows, width]
    int8_t* low;
    float scale[INT8_ROWS];
    int32_t high_sum[INT8_ROWS], low_sum[INT8_ROWS];
    int64_t width;
};

BLADE_AVX512_BF16 static void split_inputs(const Job& job, int8_t* storage, Int8Inputs& inputs) {
    constexpr float most = 127 * 256 + 127;
    inputs.width = job.weight->steps() * STEP;
    inputs.high = storage;
    inputs.low = storage + job.rows * inputs.width;
    for (int64_t row = 0; row < job.rows; ++row) {
        const bf16* x = job.x + row * job.x_stride;
        __m512 largest = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < inputs.width; i += 16) {
            __m512 values = load_bf16(x + i);
            largest = _mm512_max_ps(largest, _mm512_abs_ps(values));
            sum = _mm512_add_ps(sum, _mm512_mul_ps(values, _mm512_setzero_ps()));  // NaN if a value is no number
        }
        const float peak = _mm512_reduce_max_ps(largest);
        inputs.scale[row] = peak / most + _mm512_reduce_add_ps(sum);
        const __m512 inverse = _mm512_set1_ps(peak > 0.0f ? most / peak : 0.0f);
        __m512i high_sum = _mm512_setzero_si512(), low_sum = _mm512_setzero_si512();
        for (int64_t i = 0; i < inputs.width; i += 16) {
            __m512i integers = _mm512_cvtps_epi32(_mm512_mul_ps(load_bf16(x + i), inverse));
            __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(integers, 24), 24);
            __m512i high = _mm512_srai_epi32(_mm512_sub_epi32(integers, low), 8);
            high_sum = _mm512_add_epi32(high_sum, high);
            low_sum = _mm512_add_epi32(low_sum, low);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(inputs.high + row * inputs.width + i), _mm512_cvtepi32_epi8(high));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(inputs.low + row * inputs.width + i), _mm512_cvtepi32_epi8(low));
        }
        inputs.high_sum[row] = _mm512_reduce_add_epi32(high_sum);
        inputs.low_sum[row] = _mm512_reduce_add_epi32(low_sum);
    }
}

// The sums of one row and one tile, from both halves.
BLADE_AVX512_BF16 static inline __m512 joined(const Int8Inputs& inputs, int64_t row, __m512i high, __m512i low) {
    __m512 upper = _mm512_cvtepi32_ps(_mm512_sub_epi32(high, _mm512_set1_epi32(128 * inputs.high_sum[row])));
    __m512 lower = _mm512_cvtepi32_ps(_mm512_sub_epi32(low, _mm512_set1_epi32(128 * inputs.low_sum[row])));
    return _mm512_mul_ps(_mm512_fmadd_ps(upper, _mm512_set1_ps(256.0f), lower), _mm512_set1_ps(inputs.scale[row]));
}

BLADE_AVX512_BF16 static inline __m512i dot_bytes(__m512i sum, __m512i weights, const int8_t* inputs) {
    return _mm512_dpbusd_epi32(sum, weights, broadcast_word(inputs));
}

// Add one step of ROWS rows, straight from the bytes of a record. ``upper``, ``lower``: halves of the inputs, ``width`` a row.
template <int ROWS>
BLADE_AVX512_BF16 static inline void add_bytes(
    __m512i (&high)[ROWS][2], __m512i (&low)[ROWS][2], const int8_t* upper, const int8_t* lower, int64_t width,
    const uint8_t* record) {
#pragma GCC unroll 2
    for (int tile = 0; tile < 2; ++tile)
#pragma GCC unroll 8
        for (int vector = 0; vector < 8; ++vector, record += 64) {
            const __m512i weights = load_halves(record);
#pragma GCC unroll 4
            for (int i = 0; i < ROWS; ++i) {
                const int64_t at = i * width + vector * 4;
                high[i][tile] = dot_bytes(high[i][tile], weights, upper + at);
                low[i][tile] = dot_bytes(low[i][tile], weights, lower + at);
            }
        }
}

// ROWS rows by one panel with VNNI dot products.
template <int ROWS, bool FETCH>
BLADE_AVX512_BF16 static void int8_panel(
    const Job& job, const Int8Inputs& inputs, int64_t row, int64_t panel, int64_t distance) {
    __m512i high[ROWS][2], low[ROWS][2];
    for (int i = 0; i < ROWS; ++i) high[i][0] = high[i][1] = low[i][0] = low[i][1] = _mm512_setzero_si512();
    const uint8_t* record = job.weight->records + panel * job.weight->panel_bytes();
    const int8_t *upper = inputs.high + row * inputs.width, *lower = inputs.low + row * inputs.width;
    Fetch fetch{record + distance};
    for (int64_t step = job.weight->steps(); step > 0; --step, upper += STEP, lower += STEP, record += VALUE_BYTES_8) {
        if constexpr (FETCH) fetch.lines(VALUE_BYTES_8 / 64);
        add_bytes<ROWS>(high, low, upper, lower, inputs.width, record);
    }
    const Epilogue epilogue(*job.weight, panel);
    for (int i = 0; i < ROWS; ++i)
        epilogue.store(
            job.y + (row + i) * job.y_stride + panel * PANEL, joined(inputs, row + i, high[i][0], low[i][0]),
            joined(inputs, row + i, high[i][1], low[i][1]));
}

template <bool FETCH>
BLADE_AVX512_BF16 static void int8_panels(
    const Job& job, const Int8Inputs& inputs, int64_t first, int64_t last, int64_t distance) {
    for (int64_t panel = first; panel < last; ++panel) {
        int64_t row = 0;
        for (; row + 4 <= job.rows; row += 4) int8_panel<4, FETCH>(job, inputs, row, panel, distance);
        if (job.rows - row >= 2) int8_panel<2, FETCH>(job, inputs, row, panel, distance), row += 2;
        if (job.rows > row) int8_panel<1, FETCH>(job, inputs, row, panel, distance);
    }
}

BLADE_AVX512_BF16 static void multiply_int8_dot(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    Int8Inputs inputs;
    split_inputs(job, buffers.bytes.get(2 * job.rows * job.weight->steps() * STEP), inputs);
    const int64_t distance = prefetch_distance;
    if (distance) return int8_panels<true>(job, inputs, first, last, distance);
    int8_panels<false>(job, inputs, first, last, 0);
}

// 16 rows at a time with AMX. Tiles 0, 1: sums of the high halves; 2, 3: of the low; 4, 5: inputs; 6, 7: weights.
BLADE_AMX static void multiply_int8_amx(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    Int8Inputs inputs;
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
