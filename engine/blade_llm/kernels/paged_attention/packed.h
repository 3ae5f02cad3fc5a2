// A decode's attention over a cache of 8-bit or 4-bit integers, with the CPU's integer dot products (AVX512-VNNI): the
// query heads of one token that share a key head, when they are few.
//
// A dot product takes unsigned bytes, which the cache has, times signed ones. Queries, and the weights of values, become
// integers of 16 bits, in two bytes: of a query these are more exact than bf16. Scales and zeros of rows are factors and
// terms of whole keys and values, so no row is ever unpacked.
#pragma once

#include "decode.h"

namespace blade::attention {

constexpr float MOST = 32639;  // 127 * 256 + 127: a number whose two bytes are both signed

template <int ROWS>
struct PackedKernel {
    static constexpr int KEYS = TileKernel<false>::KEYS, TOGETHER = 3;

    struct Rows {
        const uint8_t *k[KEYS], *v[KEYS];
        alignas(64) float k_scale[KEYS], k_zero[KEYS], v_scale[KEYS], v_zero[KEYS];
    };
    struct Queries {
        float scale[ROWS];
        int32_t sum[ROWS];
    };

    // The unit's keys, for its rows: all of one token.
    BLADE_AVX512_BF16 static void attend(const Call& call, const Unit& unit) {
        const Step& step = *call.step;
        const CacheRows& packed = step.kv_rows;
        const int64_t dim = step.head_dim, share = step.heads / step.kv_heads;
        Workspace workspace = Workspace::of_thread(dim, dim);
        const int64_t token = step.query_starts[unit.sequence], position = step.seq_lens[unit.sequence] - 1;
        const bf16* queries = static_cast<const bf16*>(call.q) + token * call.q_stride + unit.kv_head * share * dim;
        float *scores = workspace.scores, *out = static_cast<float*>(workspace.queries);
        int8_t* const query = static_cast<int8_t*>(workspace.keys);      // [ROWS][high, low][dim]
        int8_t* const weights = static_cast<int8_t*>(workspace.values);  // [ROWS][high, low][KEYS]
        float best[ROWS], total[ROWS];
        std::fill(best, best + ROWS, NEVER), std::fill(total, total + ROWS, 0.0f);
        std::fill(out, out + ROWS * dim, 0.0f);
        Queries of_rows;
        for (int row = 0; row < ROWS; row++)
            of_rows.scale[row] = split_query(queries + row * dim, dim, query + 2 * row * dim, of_rows.sum[row]);
        const int64_t low = call.first_key(position);
        const int k_offset = offset_of(packed.keys), v_offset = offset_of(packed.values);
        KeyBlock blocks[2] = {};
        int current = 0;
        locate(call, unit, unit.key_begin, KEYS, sizeof(bf16), workspace.zeros, blocks[0]);
        for (int64_t first = unit.key_begin; first < unit.key_end; first += KEYS, current ^= 1) {
            const bool more = first + KEYS < unit.key_end;
            if (more) locate(call, unit, first + KEYS, KEYS, sizeof(bf16), workspace.zeros, blocks[current ^ 1]);
            const KeyBlock &block = blocks[current], &next = blocks[more ? current ^ 1 : current];
            if (first + block.count <= low) continue;
            const int padded = (block.count + 15) / 16 * 16;
            Rows rows;
            find(packed, block, padded, dim, workspace, rows);
            multiply_keys(rows, next, padded, query, of_rows, k_offset, dim, packed.keys.bytes, scores);
            float factor[ROWS], term[ROWS];
            for (int row = 0; row < ROWS; row++)
                softmax(rows, padded, static_cast<int>(std::max<int64_t>(low - first, 0)), block.count,
                        scores + row * KEYS, weights + 2 * row * KEYS, best[row], total[row], out + row * dim, dim,
                        call.scale(), v_offset, factor[row], term[row]);
            for (int row = 0; row < ROWS; row += TOGETHER)
                add_values(rows, next, row == 0 ? packed.values.bytes : 0, padded, weights, std::min(TOGETHER, ROWS - row),
                           row, factor, term, out, dim);
        }
        in_order(out, dim);
        if (unit.partial) return DecodeKernel<ROWS>::store_partial(unit.partial, best, total, out, dim);
        DecodeKernel<ROWS>::finish(call, unit, total, out, dim);
    }

   private:
    // What is added to an integer that has a sign, so that its byte has none.
    static int offset_of(const KvRows& rows) {
        return rows.method == KvMethod::int8 ? 128 : rows.method == KvMethod::int4 ? 8 : 0;
    }

    // One query as two signed bytes an element; returns what to multiply with.
    BLADE_AVX512_BF16 static float split_query(const bf16* from, int64_t dim, int8_t* to, int32_t& sum) {
        __m512 most = _mm512_setzero_ps();
        for (int64_t d = 0; d < dim; d += 16) most = _mm512_max_ps(most, _mm512_abs_ps(load_bf16(from + d)));
        const float scale = _mm512_reduce_max_ps(most) / MOST;
        const __m512 factor = _mm512_set1_ps(scale > 0 ? 1.0f / scale : 0.0f);
        __m512i all = _mm512_setzero_si512();
        for (int64_t d = 0; d < dim; d += 16) {
            const __m512i number = _mm512_cvtps_epi32(_mm512_mul_ps(load_bf16(from + d), factor));
            all = _mm512_add_epi32(all, number);
            split(number, to + d, to + dim + d);
        }
        sum = _mm512_reduce_add_epi32(all);
        return scale;
    }

    BLADE_AVX512_BF16 static inline __attribute__((always_inline)) void split(__m512i number, int8_t* high, int8_t* low) {
        const __m512i bottom = _mm512_srai_epi32(_mm512_slli_epi32(number, 24), 24);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(bottom));
        const __m512i top = _mm512_srai_epi32(_mm512_sub_epi32(number, bottom), 8);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(top));
    }

    // Where the bytes of a block's rows are, those of 4 bits spread out first; and scales and zeros, 0 beyond its end.
    BLADE_AVX512_BF16 static void find(const CacheRows& packed, const KeyBlock& block, int padded, int64_t dim,
                                       const Workspace& workspace, Rows& rows) {
        alignas(64) uint16_t halves[4][KEYS] = {};
        const int64_t k_scales = packed.keys.numbers(dim), v_scales = packed.values.numbers(dim);
        const bool k_affine = packed.keys.affine(), v_affine = packed.values.affine();
        for (int key = 0; key < block.count; key++) {
            const uint8_t *k = static_cast<const uint8_t*>(block.k[key]), *v = static_cast<const uint8_t*>(block.v[key]);
            memcpy(&halves[0][key], k + k_scales, 2), memcpy(&halves[2][key], v + v_scales, 2);
            if (k_affine) memcpy(&halves[1][key], k + k_scales + 2, 2);
            if (v_affine) memcpy(&halves[3][key], v + v_scales + 2, 2);
            rows.k[key] = k, rows.v[key] = v;
        }
        for (int key = block.count; key < padded; key++)
            rows.k[key] = rows.v[key] = static_cast<const uint8_t*>(workspace.zeros);
        for (int key = 0; key < padded; key += 16) {
            float* to[] = {rows.k_scale + key, rows.k_zero + key, rows.v_scale + key, rows.v_zero + key};
            for (int i = 0; i < 4; i++)
                _mm512_store_ps(to[i], _mm512_cvtph_ps(_mm256_load_si256(
                                           reinterpret_cast<const __m256i*>(halves[i] + key))));
        }
        uint8_t* next = static_cast<uint8_t*>(workspace.unpacked_keys);
        for (int key = 0; packed.keys.four_bits() && key < block.count; key++, next += dim)
            rows.k[key] = spread(rows.k[key], dim, next);
        for (int key = 0; packed.values.four_bits() && key < block.count; key++, next += dim)
            rows.v[key] = spread(rows.v[key], dim, next);
    }

    BLADE_AVX512_BF16 static const uint8_t* spread(const uint8_t* from, int64_t dim, uint8_t* to) {
        const __m256i mask = _mm256_set1_epi8(15);
        for (int64_t d = 0; d < dim / 2; d += 32) {
            const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + d));
            const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + d), _mm256_and_si256(both, mask));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + dim / 2 + d), high);
        }
        return to;
    }

    static inline __attribute__((always_inline)) void fetch(const void* row, int64_t bytes) {
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(row) + at, 0, 2);
    }

    BLADE_AVX512_BF16 static inline __attribute__((always_inline)) __m512i dot(__m512i sum, __m512i bytes, const int8_t* four) {
        int word;
        memcpy(&word, four, sizeof word);
        return _mm512_dpbusd_epi32(sum, bytes, _mm512_set1_epi32(word));
    }

    // scores[row][key], keys side by side in a vector.
    BLADE_AVX512_BF16 static void multiply_keys(const Rows& rows, const KeyBlock& next, int padded, const int8_t* query,
                                                const Queries& of_rows, int offset, int64_t dim, int64_t row_bytes,
                                                float* scores) {
        for (int key = 0; key < padded; key += 16) {
            __m512i high[ROWS], low[ROWS];
            for (int row = 0; row < ROWS; row++) high[row] = low[row] = _mm512_setzero_si512();
            for (int64_t d = 0; d < dim; d += 64) {
                __m512i k[16];
                for (int i = 0; i < 16; i++) {
                    if (d == 0) fetch(next.k[key + i], row_bytes);
                    k[i] = _mm512_loadu_si512(rows.k[key + i] + d);
                }
                transpose(k);
                for (int row = 0; row < ROWS; row++) {
                    const int8_t* q = query + 2 * row * dim + d;
                    for (int i = 0; i < 16; i++) {
                        high[row] = dot(high[row], k[i], q + 4 * i);
                        low[row] = dot(low[row], k[i], q + dim + 4 * i);
                    }
                }
            }
            const __m512 scale = _mm512_load_ps(rows.k_scale + key), zero = _mm512_load_ps(rows.k_zero + key);
            for (int row = 0; row < ROWS; row++) {
                const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(high[row], 8), low[row]);
                const __m512i number = _mm512_sub_epi32(both, _mm512_set1_epi32(offset * of_rows.sum[row]));
                const __m512 term = _mm512_mul_ps(zero, _mm512_set1_ps(static_cast<float>(of_rows.sum[row])));
                const __m512 score = _mm512_fmadd_ps(_mm512_cvtepi32_ps(number), scale, term);
                _mm512_store_ps(scores + row * KEYS + key, _mm512_mul_ps(score, _mm512_set1_ps(of_rows.scale[row])));
            }
        }
    }

    // Scores of one row to weights times the values' scales, in two bytes, to be multiplied with `factor`; `term` is what
    // zeros, and the offset of bytes, add to every element.
    BLADE_AVX512_BF16 static void softmax(const Rows& rows, int padded, int begin, int end, const float* scores,
                                          int8_t* weights, float& best, float& total, float* out, int64_t dim,
                                          float scale, int offset, float& factor, float& term) {
        __m512 seen[KEYS / 16];
        mask_and_rescale(padded, begin, end, scores, seen, best, total, out, dim, scale);
        __m512 sum = _mm512_setzero_ps(), zeros = sum, most = sum;
        for (int i = 0; i < padded / 16; i++) {
            const __m512 weight = coarse_exp2(_mm512_fmsub_ps(seen[i], _mm512_set1_ps(scale), _mm512_set1_ps(best)));
            sum = _mm512_add_ps(sum, weight);
            zeros = _mm512_fmadd_ps(weight, _mm512_load_ps(rows.v_zero + i * 16), zeros);
            seen[i] = _mm512_mul_ps(weight, _mm512_load_ps(rows.v_scale + i * 16));
            most = _mm512_max_ps(most, _mm512_abs_ps(seen[i]));
            zeros = _mm512_fmadd_ps(seen[i], _mm512_setzero_ps(), zeros);  // a scale that is no number shows
        }
        total += _mm512_reduce_add_ps(sum);
        factor = _mm512_reduce_max_ps(most) / MOST;
        const __m512 inverse = _mm512_set1_ps(factor > 0 ? 1.0f / factor : 0.0f);
        __m512i all = _mm512_setzero_si512();
        for (int i = 0; i < padded / 16; i++) {
            const __m512i number = _mm512_cvtps_epi32(_mm512_mul_ps(seen[i], inverse));
            all = _mm512_add_epi32(all, number);
            split(number, weights + i * 16, weights + KEYS + i * 16);
        }
        term = _mm512_reduce_add_ps(zeros) - factor * static_cast<float>(offset * _mm512_reduce_add_epi32(all));
    }

    // 64 elements of four neighbouring values at a time, for `count` rows from `row` on. The elements of `out` are out of
    // order, which `in_order` undoes in the end.
    BLADE_AVX512_BF16 static void add_values(const Rows& rows, const KeyBlock& next, int64_t row_bytes, int padded,
                                             const int8_t* weights, int count, int row, const float* factor,
                                             const float* term, float* out, int64_t dim) {
        if (count == 1) return add_values_of<1>(rows, next, row_bytes, padded, weights, row, factor, term, out, dim);
        if (count == 2) return add_values_of<2>(rows, next, row_bytes, padded, weights, row, factor, term, out, dim);
        add_values_of<3>(rows, next, row_bytes, padded, weights, row, factor, term, out, dim);
    }

    template <int N>
    BLADE_AVX512_BF16 static void add_values_of(const Rows& rows, const KeyBlock& next, int64_t row_bytes, int padded,
                                                const int8_t* weights, int row, const float* factor, const float* term,
                                                float* out, int64_t dim) {
        weights += 2 * row * KEYS;
        for (int64_t d = 0; d < dim; d += 64) {
            __m512i high[N][4], low[N][4];
            for (int n = 0; n < N; n++)
                for (int i = 0; i < 4; i++) high[n][i] = low[n][i] = _mm512_setzero_si512();
            for (int key = 0; key < padded; key += 4) {
                __m512i r[4], v[4];
                for (int i = 0; i < 4; i++) {
                    if (d == 0) fetch(next.v[key + i], row_bytes);
                    r[i] = _mm512_loadu_si512(rows.v[key + i] + d);
                }
                const __m512i front = _mm512_unpacklo_epi8(r[0], r[1]), back = _mm512_unpackhi_epi8(r[0], r[1]);
                const __m512i front2 = _mm512_unpacklo_epi8(r[2], r[3]), back2 = _mm512_unpackhi_epi8(r[2], r[3]);
                v[0] = _mm512_unpacklo_epi16(front, front2), v[1] = _mm512_unpackhi_epi16(front, front2);
                v[2] = _mm512_unpacklo_epi16(back, back2), v[3] = _mm512_unpackhi_epi16(back, back2);
                for (int n = 0; n < N; n++) {
                    const int8_t* weight = weights + 2 * n * KEYS + key;
                    for (int i = 0; i < 4; i++) {
                        high[n][i] = dot(high[n][i], v[i], weight);
                        low[n][i] = dot(low[n][i], v[i], weight + KEYS);
                    }
                }
            }
            for (int n = 0; n < N; n++) {
                float* to = out + (row + n) * dim + d;
                for (int i = 0; i < 4; i++) {
                    const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(high[n][i], 8), low[n][i]);
                    const __m512 added = _mm512_fmadd_ps(_mm512_cvtepi32_ps(both), _mm512_set1_ps(factor[row + n]),
                                                         _mm512_set1_ps(term[row + n]));
                    _mm512_storeu_ps(to + 16 * i, _mm512_add_ps(_mm512_loadu_ps(to + 16 * i), added));
                }
            }
        }
    }

    // Of each 64 elements, vector i has four of each 16.
    static void in_order(float* out, int64_t dim) {
        for (float* at = out; at < out + ROWS * dim; at += 64) {
            float mixed[64];
            memcpy(mixed, at, sizeof mixed);
            for (int i = 0; i < 4; i++)
                for (int part = 0; part < 4; part++) memcpy(at + 16 * part + 4 * i, mixed + 16 * i + 4 * part, 16);
        }
    }
};

// Whether a plain decode's rows are integers that this multiplies as they are.
inline bool is_packed_decode(const Call& call) {
    const CacheRows& rows = call.step->kv_rows;
    return rows.packed() && !rows.keys.floating() && !rows.values.floating() && rows.keys.groups == 1 &&
           rows.values.groups == 1 && call.step->head_dim % 64 == 0 && call.step->head_dim <= 256;
}

template <int ROWS = FEW_ROWS>
void attend_packed(const Call& call, const Unit& unit) {
    if constexpr (ROWS > 1)
        if (unit.rows < ROWS) return attend_packed<ROWS - 1>(call, unit);
    PackedKernel<ROWS>::attend(call, unit);
}

}  // namespace blade::attention
