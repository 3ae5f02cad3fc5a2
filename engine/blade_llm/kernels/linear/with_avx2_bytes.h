// w8a8 with AVX2: bytes widened to 16 bits, of which products are summed exactly in 32.
#pragma once

#include <algorithm>

#include "unpack_avx2.h"

namespace blade {

constexpr int AVX2_BYTE_ROWS = 4;  // by 16 outputs: 8 sums, and the weights of four inputs
constexpr int64_t AVX2_BYTE_BLOCK = 64;

// A row as 16-bit integers: of four inputs, those of even places come first, as weights are taken from their words.
BLADE_AVX2 static inline void widen_bytes(const int8_t* from, int64_t count, int16_t* to) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,
                                           0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    for (int64_t i = 0; i < count; i += 16) {
        const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_shuffle_epi8(wide, order));
    }
}

BLADE_AVX2 static inline __m256i pair_of(const int16_t* from) {
    int word;
    memcpy(&word, from, sizeof word);
    return _mm256_set1_epi32(word);
}

// ROWS rows by one tile of a panel.
template <int ROWS>
BLADE_AVX2 static void bytes_tile_avx2(
    const Job& job, const int16_t* x, int64_t row, int64_t panel, int tile, const EpilogueAvx2& epilogue) {
    const Weight& weight = *job.weight;
    __m256i sums[ROWS][2];
    for (int i = 0; i < ROWS; ++i) sums[i][0] = sums[i][1] = _mm256_set1_epi32(job.offsets[row + i]);
    const __m256i byte = _mm256_set1_epi16(255);
    const uint8_t* record = weight.records + panel * weight.panel_bytes() + tile * (W8A8_RECORD / 2);
    for (int64_t at = 0; at < job.x_stride; at += W8A8_INPUTS, record += W8A8_RECORD)
        for (int vector = 0; vector < W8A8_INPUTS / 4; ++vector) {
            const __m256i* from = reinterpret_cast<const __m256i*>(record + vector * 64);
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                const __m256i weights = _mm256_loadu_si256(from + half);
                const __m256i even = _mm256_and_si256(weights, byte), odd = _mm256_srli_epi16(weights, 8);
#pragma GCC unroll 4
                for (int i = 0; i < ROWS; ++i) {
                    const int16_t* inputs = x + i * job.x_stride + at + vector * 4;
                    const __m256i products = _mm256_add_epi32(
                        _mm256_madd_epi16(even, pair_of(inputs)), _mm256_madd_epi16(odd, pair_of(inputs + 2)));
                    sums[i][half] = _mm256_add_epi32(sums[i][half], products);
                }
            }
        }
    for (int i = 0; i < ROWS; ++i) {
        const __m256 scale = _mm256_set1_ps(job.row_scales[row + i]);
        epilogue.store(
            job.y + (row + i) * job.y_stride + panel * PANEL, tile,
            _mm256_mul_ps(_mm256_cvtepi32_ps(sums[i][0]), scale), _mm256_mul_ps(_mm256_cvtepi32_ps(sums[i][1]), scale));
    }
}

template <int MOST>
BLADE_AVX2 static inline void bytes_tile_rows_avx2(
    int64_t rows, const Job& job, const int16_t* x, int64_t row, int64_t panel, int tile, const EpilogueAvx2& epilogue) {
    if constexpr (MOST > 1)
        if (rows < MOST) return bytes_tile_rows_avx2<MOST - 1>(rows, job, x, row, panel, tile, epilogue);
    bytes_tile_avx2<MOST>(job, x, row, panel, tile, epilogue);
}

BLADE_AVX2 static void multiply_bytes_avx2(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    const int64_t block_rows = std::min(job.rows, AVX2_BYTE_BLOCK), width = job.x_stride;
    int16_t* x = reinterpret_cast<int16_t*>(buffers.widened.get(block_rows * width * sizeof(int16_t)));
    for (int64_t block = 0; block < job.rows; block += block_rows) {
        const int64_t end = std::min(block + block_rows, job.rows);
        for (int64_t row = block; row < end; ++row)
            widen_bytes(job.bytes + row * width, width, x + (row - block) * width);
        for (int64_t panel = first; panel < last; ++panel) {
            const EpilogueAvx2 epilogue(*job.weight, panel);
            for (int tile = 0; tile < 2; ++tile)
                for (int64_t row = block; row < end; row += AVX2_BYTE_ROWS)
                    bytes_tile_rows_avx2<AVX2_BYTE_ROWS>(
                        std::min<int64_t>(AVX2_BYTE_ROWS, end - row), job, x + (row - block) * width, row, panel, tile,
                        epilogue);
        }
    }
}

}  // namespace blade
