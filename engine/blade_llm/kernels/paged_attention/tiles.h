// Attention over a bf16 cache on CPUs with AVX512-BF16, with AMX tiles where they exist.
//
// Both products have the form that AMX computes: C[m, row] += A[m, pairs] B[pairs, row], a pair being two neighbouring
// bf16 along the sum. For scores A is the keys as they lie in the cache and B the packed queries; for outputs A is the
// values transposed (here, block by block) and B the weights. Without AMX the same product is one dot instruction per
// element of A and pair, with A's pair broadcast from memory, so packing and softmax serve both.
#pragma once

#include "amx.h"
#include "attend.h"
#include "kv_rows_avx512.h"
#include "portable.h"
#include "simd.h"

// gcc 12 takes its own intrinsics for uses of an uninitialised variable.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace blade::attention {

// 16 x 16 transposition of 32-bit elements.
BLADE_AVX512 static inline __attribute__((always_inline)) void transpose(__m512i (&r)[16]) {
    __m512i t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

// 2^x to 2e-4 (weights become bf16 anyway), from x = -126 up.
BLADE_AVX512 static inline __attribute__((always_inline)) __m512 coarse_exp2(__m512 x) {
    const __m512 shift = _mm512_set1_ps(12582912.0f);  // see exp2 in simd.h
    x = _mm512_max_ps(x, _mm512_set1_ps(-126.0f));
    __m512 integer = _mm512_add_ps(x, shift);
    __m512 rest = _mm512_sub_ps(x, _mm512_sub_ps(integer, shift));
    __m512 power = _mm512_fmadd_ps(rest, _mm512_set1_ps(0x1.c96d7ep-5f), _mm512_set1_ps(0x1.efb08ap-3f));
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(0x1.62e2d2p-1f));
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(1.0f));
    __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(integer), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(power), exponent));
}

// Two vectors as pairs of bf16: (low[0], high[0]), (low[1], high[1]), ...
BLADE_AVX512_BF16 static inline __attribute__((always_inline)) __m512i bf16_pairs(__m512 low, __m512 high) {
    static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(order), (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

template <bool AMX>
struct TileKernel {
    using Element = bf16;
    static constexpr int LANES = 16, KEYS = 64;

    static int64_t packed_bytes(int64_t head_dim) { return head_dim * 16 * 2; }

    // Tiles 0-3: C. 4: A, 5: B, of 32 along the sum; 6, 7: the same of 16, for what a head of 80 leaves over.
    static void start() {
        if constexpr (AMX) configure();
    }

    static void stop() {
        if constexpr (AMX) release();
    }

    // [head_dim / 2 pairs][16 rows]
    BLADE_AVX512 static void pack_queries(const bf16* const* rows, void* packed, int64_t head_dim) {
        for (int64_t d = 0; d < head_dim; d += 32) {
            bool whole = d + 32 <= head_dim;
            __m512i r[16];
            for (int i = 0; i < 16; i++) r[i] = _mm512_maskz_loadu_epi16(whole ? ~0u : 0xffffu, rows[i] + d);
            transpose(r);
            for (int i = 0; i < (whole ? 16 : 8); i++)
                _mm512_store_si512(static_cast<uint32_t*>(packed) + (d / 2 + i) * 16, r[i]);
        }
    }

    BLADE_AVX512_BF16 static void unpack(const Call& call, const KeyBlock& block, const Workspace& workspace) {
        const Step& step = *call.step;
        unpack_rows(step.kv_rows.keys, block.k, block.count, step.head_dim, static_cast<bf16*>(workspace.unpacked_keys));
        unpack_rows(step.kv_rows.values, block.v, block.count, step.head_dim,
                    static_cast<bf16*>(workspace.unpacked_values));
    }

    // Values transposed to [v_dim][KEYS]; keys copied only where they do not lie at equal distances.
    BLADE_AVX512 static void load(const Call& call, KeyBlock& block, Workspace& workspace) {
        const int64_t head_dim = call.step->head_dim, v_dim = call.form->v_dim;
        static const uint16_t low_order[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                               8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
        const __m512i low = _mm512_loadu_si512(low_order), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
        bf16* values = static_cast<bf16*>(workspace.values);
        for (int key = 0; key < block.count; key += 32) {
            const KeyBlock* next = workspace.next;
            for (int64_t d = 0; d < v_dim; d += 32) {
                bool whole = d + 32 <= v_dim;
                __mmask32 mask = whole ? ~0u : 0xffffu;
                __m512i first[16], second[16];
                for (int i = 0; i < 16; i++) {
                    if (d == 0) prefetch(next, key / 2 + i, call.k_bytes(2), call.v_bytes(2));
                    __m512i a = _mm512_maskz_loadu_epi16(mask, static_cast<const bf16*>(block.v[key + 2 * i]) + d);
                    __m512i b = _mm512_maskz_loadu_epi16(mask, static_cast<const bf16*>(block.v[key + 2 * i + 1]) + d);
                    first[i] = _mm512_permutex2var_epi16(a, low, b);
                    second[i] = _mm512_permutex2var_epi16(a, high, b);
                }
                transpose(first);
                for (int i = 0; i < 16; i++) _mm512_store_si512(values + (d + i) * KEYS + key, first[i]);
                if (!whole) continue;
                transpose(second);
                for (int i = 0; i < 16; i++) _mm512_store_si512(values + (d + 16 + i) * KEYS + key, second[i]);
            }
        }
        if (!AMX || block.k_stride) return;
        bf16* keys = static_cast<bf16*>(workspace.keys);
        for (int key = 0; key < block.count; key++, keys += head_dim) {
            memcpy(keys, block.k[key], head_dim * 2);
            block.k[key] = keys;
        }
        block.k_stride = head_dim * 2;
    }

    BLADE_AVX512_BF16 static void tile(const Call& call, const KeyBlock& block, int count, bool masked,
                                       const Limits& limits, const void* queries, float* state,
                                       Workspace& workspace) {
        const int64_t head_dim = call.step->head_dim, v_dim = call.form->v_dim;
        int padded = (count + 31) / 32 * 32;
        if constexpr (AMX) {
            scores_amx(block, count, queries, workspace.scores, head_dim);
        } else {
            scores_dot(block, count, queries, workspace.scores, head_dim);
        }
        if (call.adjusted()) adjust_scores<16>(*call.form, block.first, count, limits, workspace.scores);
        if (block.first + count > limits.branching_from) hide_branches(block, count, limits, workspace.scores);
        if (masked || padded != count) mask(block.first, padded, limits, workspace.scores);
        softmax(call, padded, workspace, state);
        const bf16* values = static_cast<const bf16*>(workspace.values);
        const uint32_t* weights = static_cast<const uint32_t*>(workspace.weights);
        float* out = state + 2 * 16;
        int64_t d = 0;
        if constexpr (AMX) {
            for (; d + 64 <= v_dim; d += 64) add_values_amx<4>(padded, values + d * KEYS, weights, out + d * 16);
            for (; d + 16 <= v_dim; d += 16) add_values_amx<1>(padded, values + d * KEYS, weights, out + d * 16);
        } else {
            for (; d + 16 <= v_dim; d += 16) add_values_dot(padded, values + d * KEYS, weights, out + d * 16);
        }
    }

    BLADE_AVX512 static void merge(float* state, const float* other, int64_t v_dim) {
        attention::merge<16>(state, other, v_dim);
    }

    BLADE_AVX512_BF16 static void finish(const Call& call, const Unit& unit, const float* state) {
        const int64_t v_dim = call.form->v_dim;
        for (int64_t row = 0; row < unit.rows; row += 16, state += (v_dim + 2) * 16) {
            __m512 sums = _mm512_load_ps(state + 16);
            int rows = static_cast<int>(std::min<int64_t>(16, unit.rows - row));
            if (call.form->sinks) {
                float sinks[16] = {};
                for (int i = 0; i < rows; i++) sinks[i] = sink_weight(call, unit, row + i, state[i]);
                sums = _mm512_add_ps(sums, _mm512_loadu_ps(sinks));
            }
            sums = _mm512_max_ps(sums, _mm512_set1_ps(TINY));
            __m512 factor = _mm512_div_ps(_mm512_set1_ps(1.0f), sums);
            bf16* out[16];
            for (int i = 0; i < rows; i++) out[i] = output_row<bf16>(call, unit, row + i);
            for (int64_t d = 0; d < v_dim; d += 16) {
                __m512i r[16];
                for (int i = 0; i < 16; i++)
                    r[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(state + (d + 2 + i) * 16), factor));
                transpose(r);
                __m512i stored[16];
                for (int i = 0; i < 16; i++) stored[i] = r[i];
                for (int i = 0; i < rows; i++)
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[i] + d),
                                        (__m256i)_mm512_cvtneps_pbh(_mm512_castsi512_ps(stored[i])));
            }
        }
    }

   private:
    BLADE_AMX static void configure() {
        TileConfig config;
        for (int tile = 0; tile < 6; tile++) config.set(tile, 16, 64);
        config.set(6, 16, 32), config.set(7, 8, 64);
        load_tile_config(config);
    }

    BLADE_AMX static void release() { _tile_release(); }

    BLADE_AMX static void scores_amx(const KeyBlock& block, int count, const void* queries, float* scores,
                                     int64_t head_dim) {
        const char* q = static_cast<const char*>(queries);
        const int64_t stride = block.k_stride;
        for (int key = 0; key < count; key += 64) {
            const int tiles = std::min(4, (count - key + 15) / 16);
            const char* k[4];
            for (int i = 0; i < 4; i++)
                k[i] = static_cast<const char*>(block.k[key + 16 * std::min(i, tiles - 1)]);
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            int64_t d = 0;
            for (; d + 32 <= head_dim; d += 32) {
                _tile_loadd(5, q + d * 32, 64);
                _tile_loadd(4, k[0] + d * 2, stride);
                _tile_dpbf16ps(0, 4, 5);
                _tile_loadd(4, k[1] + d * 2, stride);
                _tile_dpbf16ps(1, 4, 5);
                _tile_loadd(4, k[2] + d * 2, stride);
                _tile_dpbf16ps(2, 4, 5);
                _tile_loadd(4, k[3] + d * 2, stride);
                _tile_dpbf16ps(3, 4, 5);
            }
            if (d < head_dim) {
                _tile_loadd(7, q + d * 32, 64);
                _tile_loadd(6, k[0] + d * 2, stride);
                _tile_dpbf16ps(0, 6, 7);
                _tile_loadd(6, k[1] + d * 2, stride);
                _tile_dpbf16ps(1, 6, 7);
                _tile_loadd(6, k[2] + d * 2, stride);
                _tile_dpbf16ps(2, 6, 7);
                _tile_loadd(6, k[3] + d * 2, stride);
                _tile_dpbf16ps(3, 6, 7);
            }
            _tile_stored(0, scores + key * 16, 64);
            if (tiles > 1) _tile_stored(1, scores + (key + 16) * 16, 64);
            if (tiles > 2) _tile_stored(2, scores + (key + 32) * 16, 64);
            if (tiles > 3) _tile_stored(3, scores + (key + 48) * 16, 64);
        }
    }

    BLADE_AVX512_BF16 static void scores_dot(const KeyBlock& block, int count, const void* queries, float* scores,
                                             int64_t head_dim) {
        for (int key = 0; key < count; key += 16) {
            const uint32_t* k[16];
            __m512 sums[16];
            for (int i = 0; i < 16; i++) {
                k[i] = static_cast<const uint32_t*>(block.k[key + i]);
                sums[i] = _mm512_setzero_ps();
            }
            for (int64_t pair = 0; pair < head_dim / 2; pair++) {
                __m512i q = _mm512_load_si512(static_cast<const uint32_t*>(queries) + pair * 16);
                for (int i = 0; i < 16; i++) sums[i] = dot(sums[i], k[i] + pair, q);
            }
            for (int i = 0; i < 16; i++) _mm512_store_ps(scores + (key + i) * 16, sums[i]);
        }
    }

    BLADE_AVX512_BF16 static inline __attribute__((always_inline)) __m512 dot(__m512 sum, const uint32_t* pair,
                                                                              __m512i row) {
        int bits;
        memcpy(&bits, pair, sizeof bits);
        return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(bits), (__m512bh)row);
    }

    // As hide_other_branches, with all rows of a key at once.
    BLADE_AVX512 static void hide_branches(const KeyBlock& block, int count, const Limits& limits, float* scores) {
        __m512i low = _mm512_setzero_si512(), high = low;
        int64_t loaded = -1;
        for (int64_t key = std::max<int64_t>(limits.branching_from - block.first, 0); key < count; key++) {
            const int64_t bit = block.first + key - limits.branching_from;
            if (bit / 64 != loaded) {
                loaded = bit / 64;
                int64_t words[16];
                for (int lane = 0; lane < 16; lane++) words[lane] = limits.tree[lane][loaded];
                low = _mm512_loadu_si512(words), high = _mm512_loadu_si512(words + 8);
            }
            const __m512i wanted = _mm512_set1_epi64(int64_t{1} << (bit % 64));
            const __mmask16 seen = _mm512_test_epi64_mask(low, wanted) | _mm512_test_epi64_mask(high, wanted) << 8;
            const __m512 score = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), seen, scores + key * 16);
            _mm512_store_ps(scores + key * 16, score);
        }
    }

    BLADE_AVX512 static void mask(int64_t first, int padded, const Limits& limits, float* scores) {
        const __m512i low = _mm512_loadu_si512(limits.low), high = _mm512_loadu_si512(limits.high);
        for (int key = 0; key < padded; key++) {
            __m512i at = _mm512_set1_epi32(static_cast<int32_t>(first + key));
            __mmask16 seen = _mm512_cmple_epi32_mask(low, at) & _mm512_cmpgt_epi32_mask(high, at);
            __m512 score = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), seen, scores + key * 16);
            _mm512_store_ps(scores + key * 16, score);
        }
    }

    BLADE_AVX512_BF16 static void softmax(const Call& call, int padded, const Workspace& workspace, float* state) {
        const int64_t v_dim = call.form->v_dim, k_bytes = call.k_bytes(2), v_bytes = call.v_bytes(2);
        const float* scores = workspace.scores;
        uint32_t* weights = static_cast<uint32_t*>(workspace.weights);
        __m512 best[4];
        for (int i = 0; i < 4; i++) best[i] = _mm512_load_ps(scores + i * 16);
        for (int key = 4; key < padded; key += 4)
            for (int i = 0; i < 4; i++) best[i] = _mm512_max_ps(best[i], _mm512_load_ps(scores + (key + i) * 16));
        best[0] = _mm512_max_ps(_mm512_max_ps(best[0], best[1]), _mm512_max_ps(best[2], best[3]));
        const __m512 factor = _mm512_set1_ps(call.scale()), old = _mm512_load_ps(state);
        const __m512 base = _mm512_max_ps(old, _mm512_mul_ps(best[0], factor));
        if (_mm512_cmp_ps_mask(base, old, _CMP_NEQ_UQ)) {
            __m512 shrink = coarse_exp2(_mm512_sub_ps(old, base));
            for (int64_t d = 1; d < v_dim + 2; d++)
                _mm512_store_ps(state + d * 16, _mm512_mul_ps(_mm512_load_ps(state + d * 16), shrink));
            _mm512_store_ps(state, base);
        }
        __m512 even = _mm512_load_ps(state + 16), odd = _mm512_setzero_ps();
        for (int key = 0; key < padded; key += 2) {
            prefetch(workspace.next, KEYS / 2 + key / 2, k_bytes, v_bytes);
            __m512 a = coarse_exp2(_mm512_fmsub_ps(_mm512_load_ps(scores + key * 16), factor, base));
            __m512 b = coarse_exp2(_mm512_fmsub_ps(_mm512_load_ps(scores + (key + 1) * 16), factor, base));
            even = _mm512_add_ps(even, a), odd = _mm512_add_ps(odd, b);
            _mm512_store_si512(weights + key / 2 * 16, bf16_pairs(a, b));
        }
        _mm512_store_ps(state + 16, _mm512_add_ps(even, odd));
    }

    template <int N>
    BLADE_AMX static void add_values_amx(int padded, const bf16* values, const uint32_t* weights, float* out) {
        _tile_loadd(0, out, 64);
        if constexpr (N == 4) {
            _tile_loadd(1, out + 16 * 16, 64);
            _tile_loadd(2, out + 32 * 16, 64);
            _tile_loadd(3, out + 48 * 16, 64);
        }
        for (int key = 0; key < padded; key += 32) {
            _tile_loadd(5, weights + key / 2 * 16, 64);
            _tile_loadd(4, values + key, KEYS * 2);
            _tile_dpbf16ps(0, 4, 5);
            if constexpr (N == 4) {
                _tile_loadd(4, values + 16 * KEYS + key, KEYS * 2);
                _tile_dpbf16ps(1, 4, 5);
                _tile_loadd(4, values + 32 * KEYS + key, KEYS * 2);
                _tile_dpbf16ps(2, 4, 5);
                _tile_loadd(4, values + 48 * KEYS + key, KEYS * 2);
                _tile_dpbf16ps(3, 4, 5);
            }
        }
        _tile_stored(0, out, 64);
        if constexpr (N == 4) {
            _tile_stored(1, out + 16 * 16, 64);
            _tile_stored(2, out + 32 * 16, 64);
            _tile_stored(3, out + 48 * 16, 64);
        }
    }

    BLADE_AVX512_BF16 static void add_values_dot(int padded, const bf16* values, const uint32_t* weights, float* out) {
        __m512 sums[16];
        for (int i = 0; i < 16; i++) sums[i] = _mm512_load_ps(out + i * 16);
        for (int key = 0; key < padded; key += 2) {
            __m512i row = _mm512_load_si512(weights + key / 2 * 16);
            for (int i = 0; i < 16; i++)
                sums[i] = dot(sums[i], reinterpret_cast<const uint32_t*>(values + i * KEYS + key), row);
        }
        for (int i = 0; i < 16; i++) _mm512_store_ps(out + i * 16, sums[i]);
    }
};

}  // namespace blade::attention
