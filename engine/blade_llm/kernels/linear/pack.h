// From a row-major bf16 weight to records; quantisation happens on the way.
#pragma once

#include <algorithm>
#include <cmath>
#include <new>

#include "layout.h"

namespace blade {

// The 32 x 32 block of a weight that a record holds, zeros beyond the edges.
static inline void fetch_block(
    const bf16* weight, int64_t outputs, int64_t inputs, int64_t panel, int64_t step, bf16 (&block)[PANEL][STEP]) {
    const int64_t rows = std::min<int64_t>(PANEL, outputs - panel * PANEL);
    const int64_t columns = std::min<int64_t>(STEP, inputs - step * STEP);
    if (rows < PANEL || columns < STEP) memset(block, 0, sizeof block);
    for (int64_t row = 0; row < rows; ++row)
        memcpy(block[row], weight + (panel * PANEL + row) * inputs + step * STEP, columns * sizeof(bf16));
}

// Exchanges outputs and pairs of inputs, four of each at a time.
static inline void pack_bf16(const bf16 (&block)[PANEL][STEP], uint8_t* record) {
    float* words = reinterpret_cast<float*>(record);  // moved, never computed with
    for (int output = 0; output < PANEL; output += 4)
        for (int pair = 0; pair < 16; pair += 4) {
            __m128 rows[4];
            for (int i = 0; i < 4; ++i) rows[i] = _mm_loadu_ps(reinterpret_cast<const float*>(&block[output + i][pair * 2]));
            _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]);
            float* to = words + output / 16 * 256 + pair * 16 + output % 16;
            for (int i = 0; i < 4; ++i) _mm_storeu_ps(to + i * 16, rows[i]);
        }
}

// ``tile_bytes``: from one tile to the next.
static inline void pack_bytes(const uint8_t (&block)[PANEL][STEP], uint8_t* record, int tile_bytes = 512) {
    for (int output = 0; output < PANEL; ++output)
        for (int input = 0; input < STEP; ++input) {
            int at = output / 16 * tile_bytes + input / 4 * 64 + output % 16 * 4 + input % 4;
            record[at] = block[output][input];
        }
}

// Half a record of w8a8: that of ``step``. Where the other half has no step, its weights are never multiplied by anything
// but zeros.
static inline void pack_w8a8(const uint8_t (&block)[PANEL][STEP], uint8_t* records, int64_t step, int64_t steps) {
    uint8_t* record = records + step / 2 * W8A8_RECORD;
    if (step % 2 == 0 && step + 1 == steps) memset(record, 128, W8A8_RECORD);
    pack_bytes(block, record + step % 2 * 512, W8A8_RECORD / 2);
}

// In each four outputs of a vector, first their inputs 0 and 1, then 2 and 3.
static inline void pack_float8(const uint8_t (&block)[PANEL][STEP], uint8_t* record) {
    for (int output = 0; output < PANEL; ++output)
        for (int input = 0; input < STEP; ++input) {
            const int in_lane = input / 2 % 2 * 8 + output % 4 * 2 + input % 2;
            record[output / 16 * 512 + input / 4 * 64 + output % 16 / 4 * 16 + in_lane] = block[output][input];
        }
}

static inline void pack_nibbles(const uint8_t (&block)[PANEL][STEP], uint8_t* record) {
    uint16_t words[256];
    for (int tile = 0; tile < 2; ++tile)
        for (int vector = 0; vector < 4; ++vector)
            for (int word = 0; word < 32; ++word) {
                const uint8_t* inputs = block[tile * 16 + word / 2] + vector * 8 + word % 2;
                words[tile * 128 + vector * 32 + word] =
                    static_cast<uint16_t>(inputs[0] | inputs[2] << 4 | inputs[4] << 8 | inputs[6] << 12);
            }
    memcpy(record, words, VALUE_BYTES_4);
}

// Scale of int8 weights: the largest magnitude of a row becomes 127.
static inline float int8_scale(const bf16* row, int64_t inputs) {
    uint16_t most = 0;
    for (int64_t i = 0; i < inputs; ++i) most = std::max<uint16_t>(most, row[i] & 0x7fff);
    return to_float(most) / 127.0f;
}

// Nearest levels of a group for a scale, found by cutting [-1, 1] into 32 bins, narrower than the levels are apart: a bin
// knows how many midpoints lie before it, and holds one at most.
struct QuantizerAvx512 {
    __m512i before[2];
    __m512 middles, levels;

    BLADE_AVX512_BF16 explicit QuantizerAvx512(const bf16* table) {
        alignas(64) float values[16], middle[16];
        alignas(64) int32_t counts[32];
        for (int i = 0; i < 16; ++i) values[i] = to_float(table[i]);
        for (int i = 0; i < 15; ++i) middle[i] = (values[i] + values[i + 1]) / 2;
        middle[15] = INFINITY;
        for (int bin = 0; bin < 32; ++bin) {
            float start = static_cast<float>(bin) / 16.0f - 1.0f;
            counts[bin] = static_cast<int32_t>(std::lower_bound(middle, middle + 15, start) - middle);
        }
        levels = _mm512_load_ps(values);
        middles = _mm512_load_ps(middle);
        before[0] = _mm512_load_si512(counts);
        before[1] = _mm512_load_si512(counts + 16);
    }

    BLADE_AVX512_BF16 inline __m512i nearest(__m512 values, __m512 inverse) const {
        __m512 scaled = _mm512_mul_ps(values, inverse);
        __m512i bin = _mm512_cvttps_epi32(_mm512_fmadd_ps(scaled, _mm512_set1_ps(16.0f), _mm512_set1_ps(16.0f)));
        bin = _mm512_max_epi32(_mm512_min_epi32(bin, _mm512_set1_epi32(31)), _mm512_setzero_si512());
        __m512i index = _mm512_permutex2var_epi32(before[0], bin, before[1]);
        __mmask16 beyond = _mm512_cmp_ps_mask(scaled, _mm512_permutexvar_ps(index, middles), _CMP_GT_OQ);
        return _mm512_mask_add_epi32(index, beyond, index, _mm512_set1_epi32(1));
    }

    // Indices and scale of one group of 32 inputs. The value of largest magnitude sets the first scale, its sign
    // included, so that it falls on level -1; then the scale that fits the levels best, and the levels that fit it, twice.
    BLADE_AVX512_BF16 inline bf16 group(const bf16* inputs, uint8_t* indices) const {
        __m512 first = load_bf16(inputs), second = load_bf16(inputs + 16);
        float most = _mm512_reduce_max_ps(_mm512_max_ps(first, second));
        float least = _mm512_reduce_min_ps(_mm512_min_ps(first, second));
        float scale = -least >= most ? -least : -most;
        __m512i index[2];
        for (int round = 0;; ++round) {
            scale = to_float(to_bf16(scale));
            __m512 inverse = _mm512_set1_ps(scale != 0.0f ? 1.0f / scale : 0.0f);
            index[0] = nearest(first, inverse);
            index[1] = nearest(second, inverse);
            if (round == 2) break;
            __m512 level[2] = {_mm512_permutexvar_ps(index[0], levels), _mm512_permutexvar_ps(index[1], levels)};
            float product = _mm512_reduce_add_ps(_mm512_fmadd_ps(first, level[0], _mm512_mul_ps(second, level[1])));
            float square = _mm512_reduce_add_ps(_mm512_fmadd_ps(level[0], level[0], _mm512_mul_ps(level[1], level[1])));
            if (square > 0.0f) scale = product / square;
        }
        _mm_storeu_si128(reinterpret_cast<__m128i*>(indices), _mm512_cvtepi32_epi8(index[0]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(indices + 16), _mm512_cvtepi32_epi8(index[1]));
        return to_bf16(scale);
    }
};

// The same with 8 lanes, where comparing with every midpoint is as good.
struct QuantizerAvx2 {
    alignas(32) float levels[16];
    float middles[15];

    BLADE_AVX2 explicit QuantizerAvx2(const bf16* table) {
        for (int i = 0; i < 16; ++i) levels[i] = to_float(table[i]);
        for (int i = 0; i < 15; ++i) middles[i] = (levels[i] + levels[i + 1]) / 2;
    }

    BLADE_AVX2 inline __m256i nearest(__m256 values, __m256 inverse) const {
        const __m256 scaled = _mm256_mul_ps(values, inverse);
        __m256i index = _mm256_setzero_si256();
        for (float middle : middles)
            index = _mm256_sub_epi32(index, _mm256_castps_si256(_mm256_cmp_ps(scaled, _mm256_set1_ps(middle), _CMP_GT_OQ)));
        return index;
    }

    BLADE_AVX2 inline __m256 level(__m256i index) const {
        const __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(levels), index);
        const __m256 high = _mm256_permutevar8x32_ps(_mm256_load_ps(levels + 8), index);
        return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
    }

    BLADE_AVX2 inline bf16 group(const bf16* inputs, uint8_t* indices) const {
        alignas(32) float values[STEP];
        alignas(32) int32_t chosen[STEP];
        for (int i = 0; i < STEP; i += 8) _mm256_store_ps(values + i, load_bf16x8(inputs + i));
        const float most = *std::max_element(values, values + STEP), least = *std::min_element(values, values + STEP);
        float scale = -least >= most ? -least : -most;
        for (int round = 0;; ++round) {
            scale = to_float(to_bf16(scale));
            const __m256 inverse = _mm256_set1_ps(scale != 0.0f ? 1.0f / scale : 0.0f);
            __m256 products = _mm256_setzero_ps(), squares = _mm256_setzero_ps();
            for (int i = 0; i < STEP; i += 8) {
                const __m256 value = _mm256_load_ps(values + i);
                const __m256i index = nearest(value, inverse);
                _mm256_store_si256(reinterpret_cast<__m256i*>(chosen + i), index);
                products = _mm256_fmadd_ps(value, level(index), products);
                squares = _mm256_fmadd_ps(level(index), level(index), squares);
            }
            if (round == 2) break;
            const float square = total(squares);
            if (square > 0.0f) scale = total(products) / square;
        }
        for (int i = 0; i < STEP; ++i) indices[i] = static_cast<uint8_t>(chosen[i]);
        return to_bf16(scale);
    }

private:
    BLADE_AVX2 static inline float total(__m256 values) {
        alignas(32) float lanes[8];
        _mm256_store_ps(lanes, values);
        float sum = 0.0f;
        for (float lane : lanes) sum += lane;
        return sum;
    }
};

template <class Quantizer>
static inline __attribute__((always_inline)) void pack_panel(const Weight& weight, const bf16* source, int64_t panel) {
    uint8_t* records = weight.records + panel * weight.panel_bytes();
    alignas(64) bf16 block[PANEL][STEP];
    const int64_t first = panel * PANEL, count = std::min<int64_t>(PANEL, weight.outputs - first);
    float inverse[PANEL] = {};
    const bool bytes = weight.kind == Kind::int8 || weight.kind == Kind::w8a8;
    if (bytes)
        for (int64_t i = 0; i < count; ++i) {
            float scale = int8_scale(source + (first + i) * weight.inputs, weight.inputs);
            weight.scales[first + i] = scale;
            inverse[i] = scale > 0.0f ? 1.0f / scale : 0.0f;
        }
    const int64_t step_bytes = value_bytes(weight.kind) + (weight.kind == Kind::int4 ? INT4_SCALE_BYTES : 0);
    const Quantizer* quantizer = nullptr;
    alignas(64) unsigned char storage[sizeof(Quantizer)];
    if (weight.kind == Kind::int4) quantizer = new (storage) Quantizer(weight.levels);
    for (int64_t step = 0; step < weight.steps(); ++step) {
        fetch_block(source, weight.outputs, weight.inputs, panel, step, block);
        uint8_t* record = records + step * step_bytes;
        if (weight.kind == Kind::bf16) {
            pack_bf16(block, record);
        } else if (bytes) {
            uint8_t quantized[PANEL][STEP];
            for (int i = 0; i < PANEL; ++i)
                for (int j = 0; j < STEP; ++j) quantized[i][j] = static_cast<uint8_t>(static_cast<int>(rintf(to_float(block[i][j]) * inverse[i])) + 128);
            if (weight.kind == Kind::int8)
                pack_bytes(quantized, record);
            else
                pack_w8a8(quantized, records, step, weight.steps());
        } else {
            uint8_t indices[PANEL][STEP];
            bf16 scales[PANEL];
            for (int i = 0; i < PANEL; ++i) scales[i] = quantizer->group(block[i], indices[i]);
            pack_nibbles(indices, record);
            memcpy(record + VALUE_BYTES_4, scales, INT4_SCALE_BYTES);
        }
    }
}

BLADE_AVX512_BF16 static void pack_panel_avx512(const Weight& weight, const bf16* source, int64_t panel) {
    pack_panel<QuantizerAvx512>(weight, source, panel);
}

BLADE_AVX2 static void pack_panel_avx2(const Weight& weight, const bf16* source, int64_t panel) {
    pack_panel<QuantizerAvx2>(weight, source, panel);
}

}  // namespace blade
