// The experts of a mixture-of-experts layer: tokens sorted by expert, two grouped products with the gate between them,
// and the weighted sum of each token's results. At the end the layer as a whole, its router before the experts.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "operators.h"
#include "simd.h"

namespace blade {
namespace {

constexpr int SILU = 0;  // of the formulas in activate/kinds.py
constexpr int64_t CHUNK = 1024;  // as in native.py

// As _Experts in native.py. Those here are ``experts`` of the router's ``total``, from ``first`` on.
struct Experts {
    int64_t experts, hidden, inner, first, total;
    const Weight* const *gate_up, *const *down;
};

struct Sum {
    const bf16* results;      // [pairs, hidden], sorted by expert
    const int32_t* positions;  // [tokens, top_k]: where a pair's result is; below 0 for an expert that is not here
    const float* weights;
    int64_t top_k, hidden;
    bf16* out;
};

template <int W>
BLADE_INLINE void sum_kernel(const Sum& args, int64_t begin, int64_t end) {
    const int64_t hidden = args.hidden, whole = hidden / W * W;
    for (int64_t token = begin; token < end; ++token) {
        const int32_t* positions = args.positions + token * args.top_k;
        const float* weights = args.weights + token * args.top_k;
        bf16* out = args.out + token * hidden;
        for (int64_t d = 0; d < whole; d += W) {
            Float<W> total = {};
            for (int64_t i = 0; i < args.top_k; ++i)
                if (positions[i] >= 0) total += load<W>(args.results + positions[i] * hidden + d) * weights[i];
            store<W>(out + d, total);
        }
        for (int64_t d = whole; d < hidden; ++d) {
            float total = 0;
            for (int64_t i = 0; i < args.top_k; ++i)
                if (positions[i] >= 0) total += to_float(args.results[positions[i] * hidden + d]) * weights[i];
            out[d] = to_bf16(total);
        }
    }
}

BLADE_FOR_EACH_ISA(sum_tokens, sum_kernel, Sum)

// A stable counting sort: where the pairs of each expert here begin, and where each pair goes, -1 for those of experts
// that are not here. False for an id that is none.
bool sort_by_expert(const Experts& all, const int32_t* ids, int64_t pairs, int32_t* starts, int32_t* positions) {
    const int64_t experts = all.experts;
    const auto place = [&](int64_t pair) { return static_cast<uint32_t>(ids[pair]) - static_cast<uint32_t>(all.first); };
    const auto here = [&](int64_t pair) { return place(pair) < static_cast<uint32_t>(experts); };
    memset(starts, 0, (experts + 1) * sizeof(int32_t));
    for (int64_t pair = 0; pair < pairs; ++pair) {
        if (static_cast<uint32_t>(ids[pair]) >= static_cast<uint32_t>(all.total)) return false;
        if (here(pair)) ++starts[place(pair) + 1];
    }
    for (int64_t e = 0; e < experts; ++e) starts[e + 1] += starts[e];
    for (int64_t pair = 0; pair < pairs; ++pair) positions[pair] = here(pair) ? starts[place(pair)]++ : -1;
    for (int64_t e = experts; e > 0; --e) starts[e] = starts[e - 1];  // each had become the next one's
    starts[0] = 0;
    return true;
}

}  // namespace
}  // namespace blade

// ``x``: [tokens, hidden], rows ``x_stride`` apart. ``numbers``: int32 [experts + 1 + pairs]; ``sorted``: [pairs, hidden];
// ``between``: [pairs, 3 * inner]; pairs are tokens * top_k. Returns 0, or 1 for an id that is none.
BLADE_EXPORT int blade_experts(const blade::Experts* experts, const blade::bf16* x, int64_t x_stride, const int32_t* ids,
                               const float* weights, int64_t tokens, int64_t top_k, int32_t* numbers, blade::bf16* sorted,
                               blade::bf16* between, blade::bf16* out) {
    using namespace blade;
    const auto& [count, hidden, inner, first, total, gate_up, down] = *experts;
    const int64_t pairs = tokens * top_k, row_bytes = hidden * static_cast<int64_t>(sizeof(bf16));
    int32_t *starts = numbers, *positions = numbers + count + 1;
    if (!sort_by_expert(*experts, ids, pairs, starts, positions)) return 1;
    const int64_t rows = starts[count];  // pairs of the experts here
    const int64_t width = hidden;  // a structured binding cannot be captured
    split(pairs, rows * width / 4, [&](int64_t begin, int64_t end) {
        for (int64_t pair = begin; pair < end; ++pair)
            if (positions[pair] >= 0) memcpy(sorted + positions[pair] * width, x + pair / top_k * x_stride, row_bytes);
    });
    bf16* gated = between + rows * 2 * inner;
    blade_grouped_linear(gate_up, starts, count, sorted, hidden, between);
    blade_activate(1, SILU, /*gated=*/1, between, gated, rows, inner);
    blade_grouped_linear(down, starts, count, gated, inner, sorted);
    const Sum args{sorted, positions, weights, top_k, hidden, out};
    split(tokens, pairs * width / 2, [&](int64_t begin, int64_t end) { sum_tokens(args, begin, end); });
    return 0;
}

namespace blade {

// As _Mixture in mixture.py.
struct Mixture {
    const Experts* experts;
    const Weight* router;
    const float* bias;  // or null
    int64_t top_k, sigmoid, renormalize, groups, top_groups;
    float scale;
};

namespace {

// Where a layer keeps what lies between its operators; each part on lines of its own.
struct Scratch {
    bf16* logits;  // those of the router, of all tokens
    int32_t* ids;
    float* weights;
    int32_t* numbers;  // from here on of a chunk
    bf16 *sorted, *between;
    int64_t bytes = 0;

    Scratch(const Mixture& mixture, int64_t tokens, char* at) {
        const int64_t experts = mixture.experts->experts, pairs = tokens * mixture.top_k;
        const int64_t chunk_pairs = std::min(tokens, CHUNK) * mixture.top_k;
        const auto take = [&](auto*& part, int64_t count) {
            part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(at + bytes);
            bytes += (count * static_cast<int64_t>(sizeof *part) + 63) & ~int64_t{63};
        };
        take(logits, tokens * mixture.experts->total);
        take(ids, pairs);
        take(weights, pairs);
        take(numbers, experts + 1 + chunk_pairs);
        take(sorted, chunk_pairs * mixture.experts->hidden);
        take(between, chunk_pairs * 3 * mixture.experts->inner);
    }
};

}  // namespace
}  // namespace blade

BLADE_EXPORT int64_t blade_mixture_scratch(const blade::Mixture* mixture, int64_t tokens) {
    return blade::Scratch(*mixture, tokens, nullptr).bytes;
}

// ``x`` and ``out``: [tokens, hidden]; ``scratch``: as many bytes as blade_mixture_scratch says.
BLADE_EXPORT void blade_mixture(
    const blade::Mixture* mixture, const blade::bf16* x, int64_t tokens, char* scratch, blade::bf16* out) {
    using namespace blade;
    const auto& [experts, router, bias, top_k, sigmoid, renormalize, groups, top_groups, scale] = *mixture;
    const Scratch at(*mixture, tokens, scratch);
    const int64_t hidden = experts->hidden;
    blade_linear(router, x, tokens, hidden, at.logits);
    blade_moe_route(1, at.logits, bias, tokens, experts->total, top_k, sigmoid != 0, renormalize != 0, scale, groups,
                    top_groups, at.ids, at.weights);
    for (int64_t first = 0; first < tokens; first += CHUNK)
        blade_experts(experts, x + first * hidden, hidden, at.ids + first * top_k, at.weights + first * top_k,
                      std::min(CHUNK, tokens - first), top_k, at.numbers, at.sorted, at.between, out + first * hidden);
}
