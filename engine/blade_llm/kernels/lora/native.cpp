// What adapters add to the result of a linear layer. Two parallel loops: shrink, A x for every token, into fp32; expand,
// B times that, added to y. Blocks of a matrix are outside and tokens inside, so that tokens of one adapter find its
// matrices in the caches.
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

constexpr int64_t RANKS = 8, OUTPUTS = 512;

struct Call {
    const Factors* const* table;
    const Batch* batch;
    bool is_bf16;
    const void* x;
    int64_t inputs, x_stride;
    void* y;
    int64_t outputs;
    float* between;  // [tokens, widest]
    int64_t widest;
};

template <int W, class X, class T, int N>
BLADE_INLINE void dots(const X* x, const T* a, int64_t inputs, float* out) {
    Float<W> sums[N] = {};
    const int64_t whole = inputs / W * W;
    for (int64_t i = 0; i < whole; i += W) {
        const Float<W> value = load<W>(x + i);
        for (int n = 0; n < N; n++) sums[n] += value * load<W>(a + n * inputs + i);
    }
    for (int n = 0; n < N; n++) {
        float total = sum<W>(sums[n]);
        for (int64_t i = whole; i < inputs; i++) total += to_float(x[i]) * to_float(a[n * inputs + i]);
        out[n] = total;
    }
}

template <int W, class X, class T>
BLADE_INLINE void shrink_one(const Call& call, int64_t token, const Factors& factors, int64_t first) {
    const X* x = static_cast<const X*>(call.x) + call.batch->rows[token] * call.x_stride;
    const T* a = static_cast<const T*>(factors.a) + first * call.inputs;
    float* out = call.between + token * call.widest + first;
    int64_t left = std::min(RANKS, factors.rank - first);
    if (left == RANKS) return dots<W, X, T, RANKS>(x, a, call.inputs, out);
    for (; left > 0; left--, a += call.inputs, out++) dots<W, X, T, 1>(x, a, call.inputs, out);
}

template <int W>
BLADE_INLINE void shrink_kernel(const Call& call, int64_t begin, int64_t end) {
    const int64_t count = call.batch->count;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t token = unit % count, first = unit / count * RANKS;
        const Factors* factors = call.table[call.batch->slots[token]];
        if (!factors || first >= factors->rank) continue;
        if (call.is_bf16) {
            if (factors->is_bf16) shrink_one<W, bf16, bf16>(call, token, *factors, first);
            else shrink_one<W, bf16, float>(call, token, *factors, first);
        } else {
            if (factors->is_bf16) shrink_one<W, float, bf16>(call, token, *factors, first);
            else shrink_one<W, float, float>(call, token, *factors, first);
        }
    }
}

template <int W, class Y, class T, int N>
BLADE_INLINE void add_block(Y* y, const float* h, const T* b, int64_t rank, int64_t stride) {
    Float<W> sums[N] = {};
    for (int64_t r = 0; r < rank; r++) {
        const T* row = b + r * stride;
        for (int n = 0; n < N; n++) sums[n] += h[r] * load<W>(row + n * W);
    }
    for (int n = 0; n < N; n++) store<W>(y + n * W, load<W>(y + n * W) + sums[n]);
}

template <int W, class Y, class T>
BLADE_INLINE void expand_one(const Call& call, int64_t token, const Factors& factors, int64_t begin, int64_t end) {
    constexpr int N = 8;
    Y* y = static_cast<Y*>(call.y) + call.batch->rows[token] * call.outputs;
    for (int64_t s = 0; s < factors.slices; s++) {
        const Slice& slice = factors.slice[s];
        const float* h = call.between + token * call.widest + slice.first_rank;
        int64_t o = std::max(begin, slice.first_output) - slice.first_output;
        const int64_t last = std::min(end, slice.first_output + slice.outputs) - slice.first_output;
        const T* b = static_cast<const T*>(slice.b);
        Y* out = y + slice.first_output;
        for (; o + N * W <= last; o += N * W) add_block<W, Y, T, N>(out + o, h, b + o, slice.rank, slice.outputs);
        for (; o + W <= last; o += W) add_block<W, Y, T, 1>(out + o, h, b + o, slice.rank, slice.outputs);
        for (; o < last; o++) {
            float total = 0;
            for (int64_t r = 0; r < slice.rank; r++) total += h[r] * to_float(b[r * slice.outputs + o]);
            store_one(out + o, to_float(out[o]) + total);
        }
    }
}

template <int W>
BLADE_INLINE void expand_kernel(const Call& call, int64_t begin, int64_t end) {
    const int64_t count = call.batch->count;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t token = unit % count, first = unit / count * OUTPUTS;
        const Factors* factors = call.table[call.batch->slots[token]];
        if (!factors) continue;
        const int64_t last = std::min(first + OUTPUTS, call.outputs);
        if (call.is_bf16) {
            if (factors->is_bf16) expand_one<W, bf16, bf16>(call, token, *factors, first, last);
            else expand_one<W, bf16, float>(call, token, *factors, first, last);
        } else {
            if (factors->is_bf16) expand_one<W, float, bf16>(call, token, *factors, first, last);
            else expand_one<W, float, float>(call, token, *factors, first, last);
        }
    }
}

BLADE_FOR_EACH_ISA(shrink, shrink_kernel, Call)
BLADE_FOR_EACH_ISA(expand, expand_kernel, Call)

}  // namespace
}  // namespace lora
}  // namespace blade

BLADE_EXPORT void blade_lora(const blade::lora::Factors* const* table, const blade::lora::Batch* batch, int is_bf16,
                             const void* x, int64_t inputs, int64_t x_stride, void* y, int64_t outputs) {
    using namespace blade::lora;
    int64_t widest = 0, ranks = 0;
    for (int64_t token = 0; token < batch->count; token++) {
        if (const Factors* factors = table[batch->slots[token]]) {
            widest = std::max(widest, factors->rank);
            ranks += factors->rank;
        }
    }
    if (!widest) return;
    static thread_local std::vector<float> between;
    if (between.size() < static_cast<size_t>(batch->count * widest)) between.resize(batch->count * widest);
    const Call call{table, batch, is_bf16 != 0, x, inputs, x_stride, y, outputs, between.data(), widest};
    blade::split((widest + RANKS - 1) / RANKS * batch->count, ranks * inputs / 4,
                 [&](int64_t begin, int64_t end) { shrink(call, begin, end); });
    blade::split((outputs + OUTPUTS - 1) / OUTPUTS * batch->count, ranks * outputs / 4,
                 [&](int64_t begin, int64_t end) { expand(call, begin, end); });
}
