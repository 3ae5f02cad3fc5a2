// What adapters add to the result of a linear layer: shrink, A x, into fp32; expand, B times that, added to y. Threads
// share the tokens, four of one adapter at a time, so that its matrices are read seldom.
#include <immintrin.h>

#include <algorithm>
#include <vector>

#include "operators.h"
#include "simd.h"

namespace blade {
namespace lora {

// As _Slice in native.py.
struct Slice {
    int64_t first_output, outputs, first_rank, rank;
    const void* b;  // [rank, outputs]
};

// As _Factors in native.py.
struct Factors {
    int64_t is_bf16, rank;
    const void* a;  // [rank, inputs]
    int64_t slices;
    const Slice* slice;
};

// As _Batch in native.py.
struct Batch {
    int64_t count;          // tokens
    const int64_t* rows;    // of each
    const int64_t* slots;   // adapter of each
};

namespace {

constexpr int64_t RANKS = 4, TOKENS = 4;

// Up to TOKENS tokens of one adapter, which share each load of its matrices.
struct Tile {
    int64_t first, count;
    const Factors* factors;
};

struct Call {
    const Tile* tiles;
    const int64_t* rows;
    bool is_bf16;
    const void* x;
    int64_t inputs, x_stride;
    void* y;
    int64_t outputs;
    float* between;  // [tokens, widest]
    int64_t widest;
};

// RANKS dot products, or fewer, of M tokens.
template <int W, class X, class T, int M, int N>
BLADE_INLINE void dots(const X* const* x, const T* a, int64_t inputs, float* out, int64_t stride) {
    Float<W> sums[M][N] = {};
    const int64_t whole = inputs / W * W;
    for (int64_t i = 0; i < whole; i += W) {
        Float<W> values[M];
        for (int m = 0; m < M; m++) values[m] = load<W>(x[m] + i);
        for (int n = 0; n < N; n++) {
            const Float<W> weight = load<W>(a + n * inputs + i);
            for (int m = 0; m < M; m++) sums[m][n] += values[m] * weight;
        }
    }
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            float total = sum<W>(sums[m][n]);
            for (int64_t i = whole; i < inputs; i++) total += to_float(x[m][i]) * to_float(a[n * inputs + i]);
            out[m * stride + n] = total;
        }
    }
}

template <int W, class X, class T, int M>
BLADE_INLINE void shrink_some(const Call& call, const Tile& tile, int64_t first) {
    const X* x[M];
    for (int m = 0; m < M; m++) x[m] = static_cast<const X*>(call.x) + call.rows[tile.first + m] * call.x_stride;
    const T* a = static_cast<const T*>(tile.factors->a) + first * call.inputs;
    float* out = call.between + tile.first * call.widest + first;
    int64_t left = std::min(RANKS, tile.factors->rank - first);
    if (left == RANKS) return dots<W, X, T, M, RANKS>(x, a, call.inputs, out, call.widest);
    for (; left > 0; left--, a += call.inputs, out++) dots<W, X, T, M, 1>(x, a, call.inputs, out, call.widest);
}

template <int W, class X, class T>
BLADE_INLINE void shrink_tile(const Call& call, const Tile& tile, int64_t first) {
    switch (tile.count) {
        case 1: return shrink_some<W, X, T, 1>(call, tile, first);
        case 2: return shrink_some<W, X, T, 2>(call, tile, first);
        case 3: return shrink_some<W, X, T, 3>(call, tile, first);
        default: return shrink_some<W, X, T, TOKENS>(call, tile, first);
    }
}

// N * W outputs of M tokens.
template <int W, class Y, class T, int M, int N>
BLADE_INLINE void add_block(Y* const* y, const float* h, int64_t h_stride, const T* b, int64_t rank, int64_t stride) {
    Float<W> sums[M][N] = {};
    for (int64_t r = 0; r < rank; r++) {
        for (int n = 0; n < N; n++) {
            const Float<W> weight = load<W>(b + r * stride + n * W);
            for (int m = 0; m < M; m++) sums[m][n] += h[m * h_stride + r] * weight;
        }
    }
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) store<W>(y[m] + n * W, load<W>(y[m] + n * W) + sums[m][n]);
}

template <int W, class Y, class T, int M>
BLADE_INLINE void expand_some(const Call& call, const Tile& tile) {
    constexpr int N = 4;
    const Factors& factors = *tile.factors;
    for (int64_t s = 0; s < factors.slices; s++) {
        const Slice& slice = factors.slice[s];
        const float* h = call.between + tile.first * call.widest + slice.first_rank;
        int64_t o = slice.first_output;
        const int64_t last = o + slice.outputs;
        const T* b = static_cast<const T*>(slice.b);
        Y* y[M];
        for (int m = 0; m < M; m++) y[m] = static_cast<Y*>(call.y) + call.rows[tile.first + m] * call.outputs + o;
        auto advance = [&](int64_t by) {
            o += by, b += by;
            for (int m = 0; m < M; m++) y[m] += by;
        };
        for (; o + N * W <= last; advance(N * W))
            add_block<W, Y, T, M, N>(y, h, call.widest, b, slice.rank, slice.outputs);
        for (; o + W <= last; advance(W)) add_block<W, Y, T, M, 1>(y, h, call.widest, b, slice.rank, slice.outputs);
        for (; o < last; advance(1)) {
            for (int m = 0; m < M; m++) {
                float total = 0;
                for (int64_t r = 0; r < slice.rank; r++) total += h[m * call.widest + r] * to_float(b[r * slice.outputs]);
                store_one(y[m], to_float(*y[m]) + total);
            }
        }
    }
}

template <int W, class Y, class T>
BLADE_INLINE void expand_tile(const Call& call, const Tile& tile) {
    switch (tile.count) {
        case 1: return expand_some<W, Y, T, 1>(call, tile);
        case 2: return expand_some<W, Y, T, 2>(call, tile);
        case 3: return expand_some<W, Y, T, 3>(call, tile);
        default: return expand_some<W, Y, T, TOKENS>(call, tile);
    }
}

template <int W, class X, class T>
BLADE_INLINE void add_tile(const Call& call, const Tile& tile) {
    for (int64_t first = 0; first < tile.factors->rank; first += RANKS) shrink_tile<W, X, T>(call, tile, first);
    expand_tile<W, X, T>(call, tile);
}

// Tiles are whole tokens: no thread waits for another between the two products.
template <int W>
BLADE_INLINE void add_kernel(const Call& call, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        const Tile& tile = call.tiles[i];
        if (call.is_bf16) {
            if (tile.factors->is_bf16) add_tile<W, bf16, bf16>(call, tile);
            else add_tile<W, bf16, float>(call, tile);
        } else {
            if (tile.factors->is_bf16) add_tile<W, float, bf16>(call, tile);
            else add_tile<W, float, float>(call, tile);
        }
    }
}

BLADE_FOR_EACH_ISA(add, add_kernel, Call)

// As dots, of bf16 alone: the products of two pairs in one instruction.
template <int M, int N>
BLADE_AVX512_BF16 static inline void dots_of_pairs(const bf16* const* x, const bf16* a, int64_t inputs, float* out,
                                                   int64_t stride) {
    __m512 sums[M][N];
    for (auto& row : sums)
        for (auto& sum : row) sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < inputs; i += 32) {
        const __mmask32 there = inputs - i >= 32 ? ~0u : (1u << (inputs - i)) - 1;
        __m512i values[M];
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) values[m] = _mm512_maskz_loadu_epi16(there, x[m] + i);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            const __m512i weight = _mm512_maskz_loadu_epi16(there, a + n * inputs + i);
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) sums[m][n] = _mm512_dpbf16_ps(sums[m][n], (__m512bh)values[m], (__m512bh)weight);
        }
    }
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) out[m * stride + n] = _mm512_reduce_add_ps(sums[m][n]);
}

template <int M>
BLADE_AVX512_BF16 static inline void shrink_by_pairs(const Call& call, const Tile& tile) {
    const bf16* x[M];
    for (int m = 0; m < M; m++) x[m] = static_cast<const bf16*>(call.x) + call.rows[tile.first + m] * call.x_stride;
    const bf16* a = static_cast<const bf16*>(tile.factors->a);
    float* out = call.between + tile.first * call.widest;
    int64_t left = tile.factors->rank;
    for (; left >= RANKS; left -= RANKS, a += RANKS * call.inputs, out += RANKS)
        dots_of_pairs<M, RANKS>(x, a, call.inputs, out, call.widest);
    for (; left > 0; left--, a += call.inputs, out++) dots_of_pairs<M, 1>(x, a, call.inputs, out, call.widest);
}

// As add, where the CPU has the instruction.
BLADE_AVX512_BF16 static void add_by_pairs(const Call& call, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        const Tile& tile = call.tiles[i];
        if (!call.is_bf16 || !tile.factors->is_bf16) {
            add_kernel<16>(call, i, i + 1);
            continue;
        }
        switch (tile.count) {
            case 1: shrink_by_pairs<1>(call, tile); break;
            case 2: shrink_by_pairs<2>(call, tile); break;
            case 3: shrink_by_pairs<3>(call, tile); break;
            default: shrink_by_pairs<TOKENS>(call, tile);
        }
        expand_tile<16, bf16, bf16>(call, tile);
    }
}

}  // namespace
}  // namespace lora
}  // namespace blade

BLADE_EXPORT void blade_lora(const blade::lora::Factors* const* table, const blade::lora::Batch* batch, int is_bf16,
                             const void* x, int64_t inputs, int64_t x_stride, void* y, int64_t outputs) {
    using namespace blade::lora;
    static thread_local std::vector<Tile> tiles;
    static thread_local std::vector<float> between;
    tiles.clear();
    int64_t widest = 0, ranks = 0;
    for (int64_t token = 0; token < batch->count; token++) {
        const Factors* factors = table[batch->slots[token]];
        if (!factors) continue;
        const bool joins = !tiles.empty() && tiles.back().count < TOKENS && tiles.back().factors == factors &&
                           tiles.back().first + tiles.back().count == token;
        if (joins) tiles.back().count++;
        else tiles.push_back({token, 1, factors});
        widest = std::max(widest, factors->rank);
        ranks += factors->rank;
    }
    if (tiles.empty()) return;
    if (between.size() < static_cast<size_t>(batch->count * widest)) between.resize(batch->count * widest);
    const Call call{tiles.data(), batch->rows, is_bf16 != 0, x, inputs, x_stride, y, outputs, between.data(), widest};
    const auto kernel = blade::isa() >= blade::Isa::avx512_bf16 ? add_by_pairs : add;
    blade::split(tiles.size(), ranks * (inputs + outputs) / 8,
                 [&](int64_t begin, int64_t end) { kernel(call, begin, end); });
}
