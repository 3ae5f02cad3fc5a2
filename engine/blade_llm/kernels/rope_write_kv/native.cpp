// Rotation of queries and keys, optionally normalised head by head before it, and the write of keys and values into the
// cache, or apart from each other; rounding where the torch implementation rounds.
#include <cmath>

#include "kv_rows.h"
#include "operators.h"
#include "simd.h"

namespace blade {
namespace {

constexpr int64_t MAX_HEAD_DIM = 1024;

struct Rope {
    bool is_bf16;
    const void* qkv;
    const float *cosines, *sines;
    const int64_t* slots;
    void *k_cache, *v_cache, *q_out;
    int64_t heads, kv_heads, head_dim;
    const void *q_norm, *k_norm;  // both or neither
    float eps;
    bool unit_offset;
    CacheRows rows;
};

template <int W, class T>
BLADE_INLINE void normalise(const T* x, const T* weight, float eps, bool unit_offset, int64_t head_dim, float* out) {
    float squares = 0;
    Float<W> lanes = {};
    const int64_t whole = head_dim / W * W;
    for (int64_t d = 0; d < whole; d += W) lanes += load<W>(x + d) * load<W>(x + d);
    for (int64_t d = whole; d < head_dim; d++) squares += to_float(x[d]) * to_float(x[d]);
    const float factor = 1.0f / std::sqrt((squares + sum<W>(lanes)) / static_cast<float>(head_dim) + eps);
    if (unit_offset) {
        for (int64_t d = 0; d < whole; d += W)
            store<W>(out + d, rounded<W, T>(load<W>(x + d) * factor * (1.0f + load<W>(weight + d))));
        for (int64_t d = whole; d < head_dim; d++)
            out[d] = rounded_one<T>(to_float(x[d]) * factor * (1.0f + to_float(weight[d])));
        return;
    }
    for (int64_t d = 0; d < whole; d += W)
        store<W>(out + d, rounded<W, T>(rounded<W, T>(load<W>(x + d) * factor) * load<W>(weight + d)));
    for (int64_t d = whole; d < head_dim; d++)
        out[d] = rounded_one<T>(rounded_one<T>(to_float(x[d]) * factor) * to_float(weight[d]));
}

// W pairs of dimensions from `d` on.
template <int W, class T, class In>
BLADE_INLINE void rotate_pairs(const In* x, const float* cosines, const float* sines, int64_t half, int64_t d, T* out) {
    Float<W> first = load<W>(x + d), second = load<W>(x + half + d);
    Float<W> cosine = load<W>(cosines + d), sine = load<W>(sines + d);
    store<W>(out + d, first * cosine - second * sine);
    store<W>(out + half + d, second * cosine + first * sine);
}

template <int W, class T, class In>
BLADE_INLINE void rotate(const In* x, const float* cosines, const float* sines, int64_t half, T* out) {
    int64_t d = 0;
    for (; d + W <= half; d += W) rotate_pairs<W>(x, cosines, sines, half, d, out);
    if (d < half && half > W) return rotate_pairs<W>(x, cosines, sines, half, half - W, out);  // some of them again
    for (; d < half; d++) {
        float first = to_float(x[d]), second = to_float(x[half + d]);
        store_one(out + d, first * cosines[d] - second * sines[d]);
        store_one(out + half + d, second * cosines[d] + first * sines[d]);
    }
}

template <int W, class T>
BLADE_INLINE void rope_tokens(const Rope& rope, int64_t begin, int64_t end) {
    const int64_t dim = rope.head_dim, half = dim / 2, turned = rope.heads + rope.kv_heads;
    for (int64_t token = begin; token < end; token++) {
        const T* x = static_cast<const T*>(rope.qkv) + token * (turned + rope.kv_heads) * dim;
        const float *cosines = rope.cosines + token * half, *sines = rope.sines + token * half;
        const bool packed = rope.rows.packed();
        const int64_t plain = dim * static_cast<int64_t>(sizeof(T)), slot = rope.slots[token] * rope.kv_heads;
        const int64_t k_row = packed ? rope.rows.keys.bytes : plain, v_row = packed ? rope.rows.values.bytes : plain;
        T* q = static_cast<T*>(rope.q_out) + token * rope.heads * dim;
        uint8_t* k = static_cast<uint8_t*>(rope.k_cache) + slot * k_row;
        uint8_t* v = static_cast<uint8_t*>(rope.v_cache) + slot * v_row;
        for (int64_t head = 0; head < turned; head++, x += dim) {
            const bool query = head < rope.heads;
            uint8_t* key = k + (head - rope.heads) * k_row;
            T unpacked[MAX_HEAD_DIM];
            T* out = query ? q + head * dim : packed ? unpacked : reinterpret_cast<T*>(key);
            if (rope.q_norm) {
                float normed[MAX_HEAD_DIM];
                const T* weight = static_cast<const T*>(query ? rope.q_norm : rope.k_norm);
                normalise<W>(x, weight, rope.eps, rope.unit_offset, dim, normed);
                rotate<W>(normed, cosines, sines, half, out);
            } else {
                rotate<W>(x, cosines, sines, half, out);
            }
            if (!query && packed) pack_row(rope.rows.keys, unpacked, dim, key);
        }
        if (!packed) {
            memcpy(v, x, rope.kv_heads * v_row);
            continue;
        }
        for (int64_t head = 0; head < rope.kv_heads; head++)
            pack_row(rope.rows.values, x + head * dim, dim, v + head * v_row);
    }
}

template <int W>
BLADE_INLINE void rope_kernel(const Rope& rope, int64_t begin, int64_t end) {
    if (rope.is_bf16) return rope_tokens<W, bf16>(rope, begin, end);
    rope_tokens<W, float>(rope, begin, end);
}

BLADE_FOR_EACH_ISA(rope, rope_kernel, Rope)

struct Split {
    bool is_bf16;
    const void* qkv;
    const float *cosines, *sines;
    void *queries, *keys, *values;
    int64_t heads, head_rows, head_dim;
};

template <int W, class T>
BLADE_INLINE void split_rows(const Split& split, int64_t begin, int64_t end) {
    const int64_t dim = split.head_dim, half = dim / 2;
    for (int64_t row = begin; row < end; row++) {
        const T* x = static_cast<const T*>(split.qkv) + row * 3 * split.heads * dim;
        T* queries = static_cast<T*>(split.queries) + row * split.heads * dim;
        T *keys = static_cast<T*>(split.keys) + row * dim, *values = static_cast<T*>(split.values) + row * dim;
        for (int64_t head = 0; head < split.heads; head++, x += dim) {
            const T *key = x + split.heads * dim, *value = key + split.heads * dim;
            const int64_t at = head * split.head_rows * dim;
            if (split.cosines) {
                rotate<W>(x, split.cosines + row * half, split.sines + row * half, half, queries + head * dim);
                rotate<W>(key, split.cosines + row * half, split.sines + row * half, half, keys + at);
            } else {
                memcpy(queries + head * dim, x, dim * sizeof(T));
                memcpy(keys + at, key, dim * sizeof(T));
            }
            memcpy(values + at, value, dim * sizeof(T));
        }
    }
}

template <int W>
BLADE_INLINE void split_kernel(const Split& split, int64_t begin, int64_t end) {
    if (split.is_bf16) return split_rows<W, bf16>(split, begin, end);
    split_rows<W, float>(split, begin, end);
}

BLADE_FOR_EACH_ISA(split_heads, split_kernel, Split)

}  // namespace
}  // namespace blade

// head_dim is even and at most MAX_HEAD_DIM. `rows`: how the caches' rows are packed; null: they are of x's type.
BLADE_EXPORT void blade_rope_write_kv(int is_bf16, const void* qkv, const float* cosines, const float* sines,
                                      const int64_t* slots, void* k_cache, void* v_cache, void* q_out, int64_t tokens,
                                      int64_t heads, int64_t kv_heads, int64_t head_dim, const void* q_norm,
                                      const void* k_norm, float eps, int unit_offset, const blade::CacheRows* rows) {
    const blade::Rope args{is_bf16 != 0, qkv,   cosines,  sines,    slots,  k_cache, v_cache,
                           q_out,        heads, kv_heads, head_dim, q_norm, k_norm,  eps,     unit_offset != 0,
                           rows ? *rows : blade::CacheRows{}};
    blade::split(tokens, tokens * (heads + 2 * kv_heads) * head_dim,
                 [&](int64_t begin, int64_t end) { blade::rope(args, begin, end); });
}

// qkv: [rows, 3, heads, head_dim] becomes queries, [rows, heads, head_dim], and keys and values, [heads, head_rows,
// head_dim], of which the first `rows` are written; the first two rotated unless cosines is null.
BLADE_EXPORT void blade_rope_split(int is_bf16, const void* qkv, const float* cosines, const float* sines,
                                   void* queries, void* keys, void* values, int64_t rows, int64_t heads,
                                   int64_t head_rows, int64_t head_dim) {
    const blade::Split args{is_bf16 != 0, qkv, cosines, sines, queries, keys, values, heads, head_rows, head_dim};
    blade::split(rows, rows * heads * 3 * head_dim,
                 [&](int64_t begin, int64_t end) { blade::split_heads(args, begin, end); });
}
