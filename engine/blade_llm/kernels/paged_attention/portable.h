// Attention on any CPU, in fp32 arithmetic, for fp32 and bf16 caches: one template over the vector width.
#pragma once

#include "attend.h"
#include "simd.h"

namespace blade::attention {

template <int W>
BLADE_INLINE void portable_pack_queries(const float* const* rows, float* packed, int64_t head_dim) {
    for (int64_t d = 0; d < head_dim; d++)
        for (int lane = 0; lane < W; lane++) packed[d * W + lane] = rows[lane][d];
}

template <int W>
BLADE_INLINE void portable_pack_queries(const bf16* const* rows, float* packed, int64_t head_dim) {
    for (int64_t d = 0; d < head_dim; d++)
        for (int lane = 0; lane < W; lane++) packed[d * W + lane] = to_float(rows[lane][d]);
}

template <class T>
BLADE_INLINE void unpack_block(const Call& call, const KeyBlock& block, T* keys, T* values) {
    const int64_t head_dim = call.step->head_dim;
    const CacheRows& rows = call.step->kv_rows;
    for (int key = 0; key < block.count; key++, keys += head_dim, values += head_dim) {
        unpack_row(rows.keys, static_cast<const uint8_t*>(block.k[key]), head_dim, keys);
        unpack_row(rows.values, static_cast<const uint8_t*>(block.v[key]), head_dim, values);
    }
}

template <int W>
BLADE_INLINE void portable_load(KeyBlock&, Workspace&, int64_t, int64_t, const float*) {}

template <int W>
BLADE_INLINE void widen(const bf16* from, float* to, int64_t count) {
    int64_t d = 0;
    for (; d + W <= count; d += W) store<W>(to + d, load<W>(from + d));
    for (; d < count; d++) to[d] = to_float(from[d]);
}

// Products broadcast single elements of keys and values: they must be floats in memory.
template <int W>
BLADE_INLINE void portable_load(KeyBlock& block, Workspace& workspace, int64_t head_dim, int64_t v_dim, const bf16*) {
    float *keys = static_cast<float*>(workspace.keys), *values = static_cast<float*>(workspace.values);
    for (int key = 0; key < (block.count + 7) / 8 * 8; key++, keys += head_dim, values += v_dim) {
        widen<W>(static_cast<const bf16*>(block.k[key]), keys, head_dim);
        widen<W>(static_cast<const bf16*>(block.v[key]), values, v_dim);
        block.k[key] = keys, block.v[key] = values;
    }
}

template <int W>
BLADE_INLINE void portable_scores(const KeyBlock& block, int count, const float* queries, float* scores,
                                  int64_t head_dim) {
    for (int key = 0; key < count; key += 8) {
        const float* k[8];
        Float<W> sums[8] = {};
        for (int i = 0; i < 8; i++) k[i] = static_cast<const float*>(block.k[key + i]);
        for (int64_t d = 0; d < head_dim; d++) {
            Float<W> q = load<W>(queries + d * W);
            for (int i = 0; i < 8; i++) sums[i] += q * k[i][d];
        }
        for (int i = 0; i < 8; i++) store<W>(scores + (key + i) * W, sums[i]);
    }
}

// Scores as products of queries and keys to what the softmax takes, times log2(e): scaled, capped at
// softcap * tanh(score / softcap) (Gemma 2, arXiv 2408.00118), and with a penalty for distance (ALiBi, arXiv 2108.12409).
template <int W>
BLADE_INLINE void adjust_scores(const Form& form, int64_t first, int count, const Limits& limits, float* scores) {
    const bool capped = form.softcap != 0, sloped = form.slopes != nullptr;
    const float scale = form.scale * LOG2_E * (capped ? 2.0f / form.softcap : 1.0f), cap = form.softcap * LOG2_E;
    Float<W> slopes = {}, positions = {};
    if (sloped) slopes = load<W>(limits.slopes), positions = load<W>(limits.positions);
    for (int key = 0; key < count; key++) {
        Float<W> score = load<W>(scores + key * W) * scale;
        if (capped) {  // tanh(x) = 1 - 2 / (exp(2x) + 1)
            Float<W> bounded = score > 126.0f ? Float<W>{} + 126.0f : score;
            score = cap - 2.0f * cap / (exp2<W>(bounded) + 1.0f);
        }
        if (sloped) score += slopes * (static_cast<float>(first + key) - positions);
        store<W>(scores + key * W, score);
    }
}

// Scores to weights in place; rescales what the state has by the new maximum.
template <int W>
BLADE_INLINE void portable_softmax(int64_t first, int count, bool masked, const Limits& limits, float* scores,
                                   float* state, int64_t v_dim, float scale) {
    Float<W> largest = load<W>(state), best = Float<W>{} - INFINITY;
    const auto hidden = (typename Lanes<W>::Word)(Float<W>{} - INFINITY);
    typename Lanes<W>::Int low, high;
    memcpy(&low, limits.low, sizeof low), memcpy(&high, limits.high, sizeof high);
    const Float<W> oldest = __builtin_convertvector(low, Float<W>);
    const Float<W> newest = __builtin_convertvector(high - 1, Float<W>);
    for (int key = 0; key < count; key++) {
        Float<W> score = load<W>(scores + key * W);
        if (masked) {
            Float<W> at = Float<W>{} + static_cast<float>(first + key);  // exact below 2^24
            auto seen = at_least<W>(at, oldest) & at_least<W>(newest, at);
            score = (Float<W>)(((typename Lanes<W>::Word)score & seen) | (hidden & ~seen));
            store<W>(scores + key * W, score);
        }
        best = max<W>(best, score);
    }
    Float<W> base = max<W>(largest, best * scale), factor = exp2<W>(largest - base);
    Float<W> total = load<W>(state + W) * factor;
    for (int key = 0; key < count; key++) {
        Float<W> weight = exp2<W>(load<W>(scores + key * W) * scale - base);
        store<W>(scores + key * W, weight);
        total += weight;
    }
    store<W>(state, base), store<W>(state + W, total);
    for (int64_t d = 2; d < v_dim + 2; d++) store<W>(state + d * W, load<W>(state + d * W) * factor);
}

template <int W, int N>
BLADE_INLINE void portable_add_values(const KeyBlock& block, int count, const float* weights, float* out, int64_t d) {
    Float<W> sums[N];
    for (int i = 0; i < N; i++) sums[i] = load<W>(out + (d + i) * W);
    for (int key = 0; key < count; key++) {
        Float<W> weight = load<W>(weights + key * W);
        const float* v = static_cast<const float*>(block.v[key]) + d;
        for (int i = 0; i < N; i++) sums[i] += weight * v[i];
    }
    for (int i = 0; i < N; i++) store<W>(out + (d + i) * W, sums[i]);
}

template <int W>
BLADE_INLINE void portable_tile(const Call& call, const KeyBlock& block, int count, bool masked, const Limits& limits,
                                const float* queries, float* state, Workspace& workspace) {
    const int64_t v_dim = call.form->v_dim;
    portable_scores<W>(block, count, queries, workspace.scores, call.step->head_dim);
    if (call.adjusted()) adjust_scores<W>(*call.form, block.first, count, limits, workspace.scores);
    hide_other_branches<W>(block, count, limits, workspace.scores);
    portable_softmax<W>(block.first, count, masked, limits, workspace.scores, state, v_dim, call.scale());
    int64_t d = 0;
    for (; d + 8 <= v_dim; d += 8) portable_add_values<W, 8>(block, count, workspace.scores, state + 2 * W, d);
    for (; d < v_dim; d++) portable_add_values<W, 1>(block, count, workspace.scores, state + 2 * W, d);
}

// Adds the state of further keys to a state.
template <int W>
BLADE_INLINE void merge(float* state, const float* other, int64_t v_dim) {
    Float<W> base = max<W>(load<W>(state), load<W>(other));
    Float<W> mine = exp2<W>(load<W>(state) - base), theirs = exp2<W>(load<W>(other) - base);
    store<W>(state, base);
    for (int64_t d = 1; d < v_dim + 2; d++)
        store<W>(state + d * W, load<W>(state + d * W) * mine + load<W>(other + d * W) * theirs);
}

template <int W, class T>
BLADE_INLINE void portable_finish(const Call& call, const Unit& unit, const float* state) {
    const int64_t v_dim = call.form->v_dim;
    for (int64_t row = 0; row < unit.rows; row++) {
        T* out = output_row<T>(call, unit, row);
        const float* lane = state + row / W * (v_dim + 2) * W + row % W;
        float total = lane[W];
        if (call.form->sinks) total += sink_weight(call, unit, row, lane[0]);
        float factor = 1.0f / std::max(total, TINY);
        for (int64_t d = 0; d < v_dim; d++) store_one(out + d, lane[(d + 2) * W] * factor);
    }
}

// The kernel for one instruction set; TARGET is its attribute.
#define BLADE_PORTABLE_ATTENTION(Name, W, TARGET)                                                                     \
    template <class T>                                                                                                \
    struct Name {                                                                                                     \
        using Element = T;                                                                                            \
        static constexpr int LANES = W, KEYS = 64;                                                                    \
        static void start() {}                                                                                        \
        static void stop() {}                                                                                         \
        static int64_t packed_bytes(int64_t head_dim) { return head_dim * W * 4; }                                    \
        TARGET static void pack_queries(const T* const* rows, void* packed, int64_t head_dim) {                       \
            portable_pack_queries<W>(rows, static_cast<float*>(packed), head_dim);                                    \
        }                                                                                                             \
        TARGET static void unpack(const Call& call, const KeyBlock& block, const Workspace& workspace) {               \
            unpack_block(call, block, static_cast<T*>(workspace.unpacked_keys),                                       \
                         static_cast<T*>(workspace.unpacked_values));                                                 \
        }                                                                                                             \
        TARGET static void load(const Call& call, KeyBlock& block, Workspace& workspace) {                            \
            const int64_t head_dim = call.step->head_dim, v_dim = call.form->v_dim, size = sizeof(T);                 \
            for (int key = 0; key < KEYS; key++)                                                                      \
                prefetch(workspace.next, key, call.k_bytes(size), call.v_bytes(size));                                \
            portable_load<W>(block, workspace, head_dim, v_dim, static_cast<const T*>(nullptr));                      \
        }                                                                                                             \
        TARGET static void tile(const Call& call, const KeyBlock& block, int count, bool masked,                      \
                                const Limits& limits, const void* q, float* state, Workspace& workspace) {            \
            portable_tile<W>(call, block, count, masked, limits, static_cast<const float*>(q), state, workspace);     \
        }                                                                                                             \
        TARGET static void merge(float* state, const float* other, int64_t v_dim) {                                   \
            attention::merge<W>(state, other, v_dim);                                                                 \
        }                                                                                                             \
        TARGET static void finish(const Call& call, const Unit& unit, const float* state) {                           \
            portable_finish<W, T>(call, unit, state);                                                                 \
        }                                                                                                             \
    };

BLADE_PORTABLE_ATTENTION(Avx512Kernel, 16, BLADE_AVX512)
BLADE_PORTABLE_ATTENTION(Avx2Kernel, 8, BLADE_AVX2)
BLADE_PORTABLE_ATTENTION(BaselineKernel, 4, )

}  // namespace blade::attention
