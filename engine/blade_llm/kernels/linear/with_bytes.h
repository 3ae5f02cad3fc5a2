// w8a8 with VNNI: bytes of rounded activations by bytes of weights, summed exactly in 32 bits, for any number of rows.
//
// Weights are unsigned, 128 too large, as the instruction wants one of the two: sums start from -128 times the sum of a
// row's activations.
#pragma once

#include <algorithm>

#include "epilogue.h"
#include "stream.h"

namespace blade {

constexpr int BYTE_ROWS = 8;         // 16 sums: enough to hide the instruction's latency
constexpr int BYTE_STREAM_ROWS = 4;  // up to here the weights come slower than they are multiplied
constexpr int64_t BYTE_RECORDS = 8;  // that rows pass by at a time: 16 KiB, a third of L1
constexpr int W8A8_VECTORS = W8A8_RECORD / 128;  // of a tile

static inline int64_t w8a8_records(const Weight& weight) { return (weight.steps() + 1) / 2; }

// Add so many records of ROWS rows; fetch as many lines as they have.
template <int ROWS, bool FETCH>
BLADE_AVX512_BF16 static inline void add_bytes(
    __m512i (&sums)[ROWS][2], const int8_t* x, int64_t x_stride, const uint8_t* record, int64_t records, Fetch& fetch) {
    for (; records > 0; --records, record += W8A8_RECORD, x += W8A8_INPUTS)
#pragma GCC unroll 4
        for (int vector = 0; vector < W8A8_VECTORS; ++vector) {
            if constexpr (FETCH) fetch.lines(2);
            const __m512i first = _mm512_loadu_si512(record + vector * 64);
            const __m512i second = _mm512_loadu_si512(record + (W8A8_VECTORS + vector) * 64);
#pragma GCC unroll 8
            for (int i = 0; i < ROWS; ++i) {
                const __m512i inputs = broadcast_word(x + i * x_stride + vector * 4);
                sums[i][0] = _mm512_dpbusd_epi32(sums[i][0], first, inputs);
                sums[i][1] = _mm512_dpbusd_epi32(sums[i][1], second, inputs);
            }
        }
}

// The outputs of a row and panel.
BLADE_AVX512_BF16 static inline void store_bytes_row(
    const Epilogue& epilogue, const Job& job, int64_t row, int64_t panel, __m512i first, __m512i second) {
    const __m512 scale = _mm512_set1_ps(job.row_scales[row]);
    epilogue.store(
        job.y + row * job.y_stride + panel * PANEL, _mm512_mul_ps(_mm512_cvtepi32_ps(first), scale),
        _mm512_mul_ps(_mm512_cvtepi32_ps(second), scale));
}

// All ROWS rows there are by one panel.
template <int ROWS, bool FETCH>
BLADE_AVX512_BF16 static void bytes_panel(const Job& job, int64_t panel, int64_t distance) {
    const Weight& weight = *job.weight;
    __m512i sums[ROWS][2];
    for (int i = 0; i < ROWS; ++i) sums[i][0] = sums[i][1] = _mm512_set1_epi32(job.offsets[i]);
    const uint8_t* record = weight.records + panel * weight.panel_bytes();
    Fetch fetch{record + distance};
    add_bytes<ROWS, FETCH>(sums, job.bytes, job.x_stride, record, w8a8_records(weight), fetch);
    const Epilogue epilogue(weight, panel);
    for (int i = 0; i < ROWS; ++i) store_bytes_row(epilogue, job, i, panel, sums[i][0], sums[i][1]);
}

template <int MOST>
BLADE_AVX512_BF16 static inline void bytes_rows(const Job& job, int64_t panel, int64_t distance) {
    if constexpr (MOST > 1)
        if (job.rows < MOST) return bytes_rows<MOST - 1>(job, panel, distance);
    if (MOST > BYTE_STREAM_ROWS || distance)
        bytes_panel<MOST, true>(job, panel, MOST > BYTE_STREAM_ROWS ? job.weight->panel_bytes() : distance);
    else
        bytes_panel<MOST, false>(job, panel, 0);
}

// ROWS rows by some records of a panel. ``to``: their sums, PANEL a row.
template <int ROWS>
BLADE_AVX512_BF16 static void bytes_part(
    int32_t* to, const int8_t* x, int64_t x_stride, const uint8_t* record, int64_t records) {
    __m512i sums[ROWS][2];
    Fetch nothing{};
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
        for (int tile = 0; tile < 2; ++tile) sums[i][tile] = _mm512_loadu_si512(to + i * PANEL + tile * 16);
    add_bytes<ROWS, false>(sums, x, x_stride, record, records, nothing);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i)
        for (int tile = 0; tile < 2; ++tile) _mm512_storeu_si512(to + i * PANEL + tile * 16, sums[i][tile]);
}

template <int MOST>
BLADE_AVX512_BF16 static inline void bytes_part_rows(
    int64_t rows, int32_t* to, const int8_t* x, int64_t x_stride, const uint8_t* record, int64_t records) {
    if constexpr (MOST > 1)
        if (rows < MOST) return bytes_part_rows<MOST - 1>(rows, to, x, x_stride, record, records);
    bytes_part<MOST>(to, x, x_stride, record, records);
}

// Rows that stay in half the L2 cache while panels pass by.
static inline int64_t byte_block_rows(int64_t x_stride) {
    constexpr int64_t bytes = 1 << 19;
    return std::max<int64_t>(bytes / x_stride / BYTE_ROWS, 1) * BYTE_ROWS;
}

BLADE_AVX512_BF16 static void multiply_bytes(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    const Weight& weight = *job.weight;
    const int64_t distance = prefetch_distance(Kind::w8a8);
    if (job.rows <= BYTE_ROWS) {
        for (int64_t panel = first; panel < last; ++panel) bytes_rows<BYTE_ROWS>(job, panel, distance);
        return;
    }
    const int64_t all = w8a8_records(weight), block_rows = std::min(byte_block_rows(job.x_stride), job.rows);
    int32_t* sums = reinterpret_cast<int32_t*>(buffers.sums.get(block_rows * PANEL * sizeof(int32_t)));
    for (int64_t block = 0; block < job.rows; block += block_rows) {
        const int64_t rows = std::min(block_rows, job.rows - block), groups = (rows + BYTE_ROWS - 1) / BYTE_ROWS;
        for (int64_t panel = first; panel < last; ++panel) {
            for (int64_t row = 0; row < rows; ++row)
                for (int tile = 0; tile < 2; ++tile)
                    _mm512_storeu_si512(sums + row * PANEL + tile * 16, _mm512_set1_epi32(job.offsets[block + row]));
            const uint8_t* record = weight.records + panel * weight.panel_bytes();
            for (int64_t at = 0; at < all; at += BYTE_RECORDS) {
                const int64_t records = std::min(BYTE_RECORDS, all - at);
                Fetch fetch{record + (at + records) * W8A8_RECORD};
                const int64_t lines = (records * (W8A8_RECORD / 64) + groups - 1) / groups;
                for (int64_t row = 0; row < rows; row += BYTE_ROWS) {
                    fetch.lines(lines);
                    bytes_part_rows<BYTE_ROWS>(
                        std::min<int64_t>(BYTE_ROWS, rows - row), sums + row * PANEL,
                        job.bytes + (block + row) * job.x_stride + at * W8A8_INPUTS, job.x_stride,
                        record + at * W8A8_RECORD, records);
                }
            }
            const Epilogue epilogue(weight, panel);
            for (int64_t row = 0; row < rows; ++row) {
                const int32_t* sum = sums + row * PANEL;
                store_bytes_row(
                    epilogue, job, block + row, panel, _mm512_loadu_si512(sum), _mm512_loadu_si512(sum + 16));
            }
        }
    }
}

}  // namespace blade
