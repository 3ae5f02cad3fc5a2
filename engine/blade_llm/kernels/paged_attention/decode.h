// A decode's attention over a bf16 cache on CPUs with AVX512-BF16 and no AMX: the query heads of one token that share a
// key head, when they are few.
//
// Tiles (tiles.h) compute 16 rows whatever they have. Here vectors run along a head instead: keys are multiplied as they
// lie in the cache, and of values only neighbours are interleaved, so that the cache is read at the memory's speed.
#pragma once

#include "attend.h"
#include "tiles.h"

namespace blade::attention {

constexpr int FEW_ROWS = 8;

// Sums of each of 16 vectors, in order.
BLADE_AVX512 static inline __attribute__((always_inline)) __m512 sums_of(__m512 (&v)[16]) {
    __m512 t[8], u[4];
    for (int i = 0; i < 8; i++) t[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                                                     _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(t[2 * i]), b = _mm512_castps_pd(t[2 * i + 1]);
        u[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    // Each 128 bits of u[i] are a part of the sums 4i to 4i + 3.
    const __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(u[0], u[1], 0x88), _mm512_shuffle_f32x4(u[0], u[1], 0xdd));
    const __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(u[2], u[3], 0x88), _mm512_shuffle_f32x4(u[2], u[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}

// The scores of one row; those of keys before `begin` and from `end` on are not seen. Where they are higher than `best`,
// that is raised, and what is summed up already (`total`, `out`) shrinks with it.
BLADE_AVX512_BF16 static inline __attribute__((always_inline)) void mask_and_rescale(
    int padded, int begin, int end, const float* scores, __m512* seen, float& best, float& total, float* out,
    int64_t v_dim, float scale) {
    const __m512i first = _mm512_set1_epi32(begin), last = _mm512_set1_epi32(end), step = _mm512_set1_epi32(16);
    __m512i at = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512 largest = _mm512_set1_ps(-INFINITY);
    for (int i = 0; i < padded / 16; i++, at = _mm512_add_epi32(at, step)) {
        const __mmask16 in = _mm512_cmple_epi32_mask(first, at) & _mm512_cmplt_epi32_mask(at, last);
        seen[i] = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), in, scores + i * 16);
        largest = _mm512_max_ps(largest, seen[i]);
    }
    const float base = std::max(best, _mm512_reduce_max_ps(largest) * scale);
    if (base == best) return;
    const __m512 shrink = coarse_exp2(_mm512_set1_ps(best - base));
    for (int64_t d = 0; d < v_dim; d += 16)
        _mm512_storeu_ps(out + d, _mm512_mul_ps(_mm512_loadu_ps(out + d), shrink));
    total *= _mm512_cvtss_f32(shrink);
    best = base;
}

template <int ROWS>
struct DecodeKernel {
    static constexpr int KEYS = TileKernel<false>::KEYS;

    // The unit's keys, for its rows: all of one token.
    BLADE_AVX512_BF16 static void attend(const Call& call, const Unit& unit) {
        const Step& step = *call.step;
        const int64_t head_dim = step.head_dim, v_dim = call.form->v_dim, share = step.heads / step.kv_heads;
        Workspace workspace = Workspace::of_thread(head_dim, v_dim);
        const int64_t token = step.query_starts[unit.sequence], position = step.seq_lens[unit.sequence] - 1;
        const bf16* queries = static_cast<const bf16*>(call.q) + token * call.q_stride + unit.kv_head * share * head_dim;
        float *scores = workspace.scores, *out = static_cast<float*>(workspace.queries);
        bf16* weights = static_cast<bf16*>(workspace.weights);
        float best[ROWS], total[ROWS];
        std::fill(best, best + ROWS, NEVER), std::fill(total, total + ROWS, 0.0f);
        std::fill(out, out + ROWS * v_dim, 0.0f);
        const int64_t low = call.first_key(position);
        KeyBlock blocks[2] = {};
        int current = 0;
        locate(call, unit, unit.key_begin, KEYS, sizeof(bf16), workspace.zeros, blocks[0]);
        for (int64_t first = unit.key_begin; first < unit.key_end; first += KEYS, current ^= 1) {
            const bool more = first + KEYS < unit.key_end;
            if (more) locate(call, unit, first + KEYS, KEYS, sizeof(bf16), workspace.zeros, blocks[current ^ 1]);
            KeyBlock &block = blocks[current], &next = blocks[more ? current ^ 1 : current];
            if (first + block.count <= low) continue;
            if (step.kv_rows.packed()) {
                TileKernel<false>::unpack(call, block, workspace);
                place_unpacked(call, block, workspace, sizeof(bf16));
            }
            const int padded = (block.count + 31) / 32 * 32;
            multiply_keys(block, next, padded, queries, head_dim, scores);
            for (int row = 0; row < ROWS; row++)
                softmax(padded, static_cast<int>(std::max<int64_t>(low - first, 0)), block.count, scores + row * KEYS,
                        weights + row * KEYS, best[row], total[row], out + row * v_dim, v_dim, call.scale());
            add_values(block, next, padded, weights, out, v_dim);
        }
        if (unit.partial) return store_partial(unit.partial, best, total, out, v_dim);
        finish(call, unit, total, out, v_dim);
    }

    BLADE_AVX512_BF16 static void finish(const Call& call, const Unit& unit, const float* total, const float* out,
                                         int64_t v_dim) {
        for (int row = 0; row < ROWS; row++) {
            const __m512 factor = _mm512_set1_ps(1.0f / std::max(total[row], TINY));
            bf16* to = output_row<bf16>(call, unit, row);
            for (int64_t d = 0; d < v_dim; d += 16)
                _mm256_storeu_si256(
                    reinterpret_cast<__m256i*>(to + d),
                    (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_loadu_ps(out + row * v_dim + d), factor)));
        }
    }

    // As a tile's state, rows in its lanes: parts are merged and finished as tiles are.
    static void store_partial(float* state, const float* best, const float* total, const float* out, int64_t v_dim) {
        std::fill(state, state + 16, NEVER);
        std::fill(state + 16, state + (v_dim + 2) * 16, 0.0f);
        for (int row = 0; row < ROWS; row++) {
            state[row] = best[row], state[16 + row] = total[row];
            for (int64_t d = 0; d < v_dim; d++) state[(d + 2) * 16 + row] = out[row * v_dim + d];
        }
    }

   private:
    // One line into L2. The next block's lines are fetched one by one between the products of this one's: many at once
    // would wait for each other.
    static inline __attribute__((always_inline)) void fetch(const void* row, int64_t element) {
        __builtin_prefetch(static_cast<const bf16*>(row) + element, 0, 2);
    }

    // scores[row][key]
    BLADE_AVX512_BF16 static void multiply_keys(const KeyBlock& block, const KeyBlock& next, int padded,
                                                const bf16* queries, int64_t head_dim, float* scores) {
        for (int key = 0; key < padded; key += 16) {
            for (int row = 0; row < ROWS; row++) {
                __m512 sums[16];
                for (auto& sum : sums) sum = _mm512_setzero_ps();
                for (int64_t d = 0; d < head_dim; d += 32) {
                    for (int i = 16 * row / ROWS; i < 16 * (row + 1) / ROWS; i++) fetch(next.k[key + i], d);
                    const __m512i q = _mm512_loadu_si512(queries + row * head_dim + d);
                    for (int i = 0; i < 16; i++) {
                        const __m512i k = _mm512_loadu_si512(static_cast<const bf16*>(block.k[key + i]) + d);
                        sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)q, (__m512bh)k);
                    }
                }
                _mm512_store_ps(scores + row * KEYS + key, sums_of(sums));
            }
        }
    }

    // Scores of one row to weights; keys before ``begin`` and from ``end`` on are not seen.
    BLADE_AVX512_BF16 static void softmax(int padded, int begin, int end, const float* scores, bf16* weights,
                                          float& best, float& total, float* out, int64_t v_dim, float scale) {
        __m512 seen[KEYS / 16];
        mask_and_rescale(padded, begin, end, scores, seen, best, total, out, v_dim, scale);
        __m512 sum = _mm512_setzero_ps();
        const __m512 factor = _mm512_set1_ps(scale), offset = _mm512_set1_ps(best);
        for (int i = 0; i < padded / 16; i += 2) {
            const __m512 a = coarse_exp2(_mm512_fmsub_ps(seen[i], factor, offset));
            const __m512 b = coarse_exp2(_mm512_fmsub_ps(seen[i + 1], factor, offset));
            sum = _mm512_add_ps(sum, _mm512_add_ps(a, b));
            _mm512_storeu_si512(weights + i * 16, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        }
        total += _mm512_reduce_add_ps(sum);
    }

    // 32 elements of two neighbouring values at a time: pairs of the first and the second four of each eight.
    BLADE_AVX512_BF16 static void add_values(const KeyBlock& block, const KeyBlock& next, int padded,
                                             const bf16* weights, float* out, int64_t v_dim) {
        const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
        const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
        for (int64_t d = 0; d < v_dim; d += 32) {
            __m512 low[ROWS], high[ROWS];
            for (int row = 0; row < ROWS; row++) low[row] = high[row] = _mm512_setzero_ps();
            for (int key = 0; key < padded; key += 2) {
                fetch(next.v[key], d), fetch(next.v[key + 1], d);
                const __m512i a = _mm512_loadu_si512(static_cast<const bf16*>(block.v[key]) + d);
                const __m512i b = _mm512_loadu_si512(static_cast<const bf16*>(block.v[key + 1]) + d);
                const __m512i lower = _mm512_unpacklo_epi16(a, b), upper = _mm512_unpackhi_epi16(a, b);
                for (int row = 0; row < ROWS; row++) {
                    const __m512i weight = broadcast_word(weights + row * KEYS + key);
                    low[row] = _mm512_dpbf16_ps(low[row], (__m512bh)lower, (__m512bh)weight);
                    high[row] = _mm512_dpbf16_ps(high[row], (__m512bh)upper, (__m512bh)weight);
                }
            }
            for (int row = 0; row < ROWS; row++) {
                float* to = out + row * v_dim + d;
                const __m512 front = _mm512_permutex2var_ps(low[row], first, high[row]);
                const __m512 back = _mm512_permutex2var_ps(low[row], second, high[row]);
                _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), front));
                _mm512_storeu_ps(to + 16, _mm512_add_ps(_mm512_loadu_ps(to + 16), back));
            }
        }
    }
};

// Whether a unit is of one token, and of the plain form that this computes.
inline bool is_plain_decode(const Call& call, const Unit& unit) {
    const Step& step = *call.step;
    const Form& form = *call.form;
    return !step.fixed_order && step.query_starts[unit.sequence + 1] - step.query_starts[unit.sequence] == 1 &&
           unit.rows <= FEW_ROWS && step.head_dim % 32 == 0 && form.v_dim % 32 == 0 && !call.adjusted() && !form.sinks &&
           !form.bidirectional && unit.key_begin < unit.key_end;
}

template <int ROWS = FEW_ROWS>
void attend_decode(const Call& call, const Unit& unit) {
    if constexpr (ROWS > 1)
        if (unit.rows < ROWS) return attend_decode<ROWS - 1>(call, unit);
    DecodeKernel<ROWS>::attend(call, unit);
}

}  // namespace blade::attention
