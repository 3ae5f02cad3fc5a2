// Routing of a mixture-of-experts layer: scores, the best groups, the best experts, their weights.
//
// Ties are part of a choice. The standard library's selection is called as torch.topk calls it, with the same order of
// numbers, so that equal scores come out as they do there.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "simd.h"

namespace blade {
namespace {

using Entry = std::pair<float, int32_t>;

struct Routing {
    bool is_bf16;
    const void* logits;
    const float* bias;  // or null
    int64_t experts, top_k;
    bool sigmoid, renormalize;
    float scale;
    int64_t groups, top_groups;
    int32_t* ids;
    float* weights;
};

constexpr float LEAST_SUM = 1e-20f;

inline bool larger(const Entry& a, const Entry& b) {
    return (std::isnan(a.first) && !std::isnan(b.first)) || a.first > b.first;
}

// The ``k`` largest entries to the front, in order.
inline void select(std::vector<Entry>& entries, int64_t k) {
    const auto begin = entries.begin();
    if (k * 64 <= static_cast<int64_t>(entries.size())) {
        std::partial_sort(begin, begin + k, entries.end(), larger);
    } else {
        std::nth_element(begin, begin + k - 1, entries.end(), larger);
        std::sort(begin, begin + k - 1, larger);
    }
}

template <class T>
void score(const Routing& args, int64_t row, std::vector<float>& scores) {
    const T* logits = static_cast<const T*>(args.logits) + row * args.experts;
    if (args.sigmoid) {
        for (int64_t e = 0; e < args.experts; ++e) scores[e] = 1.0f / (1.0f + std::exp(-to_float(logits[e])));
        return;
    }
    float top = -std::numeric_limits<float>::infinity(), total = 0;
    for (int64_t e = 0; e < args.experts; ++e) top = std::max(top, to_float(logits[e]));
    for (int64_t e = 0; e < args.experts; ++e) total += scores[e] = std::exp(to_float(logits[e]) - top);
    for (int64_t e = 0; e < args.experts; ++e) scores[e] /= total;
}

// What counts for the choice: scores with their bias, minus infinity in the groups that are excluded.
void choose_groups(const Routing& args, std::vector<Entry>& choice) {
    static thread_local std::vector<Entry> groups;
    static thread_local std::vector<char> open;
    const int64_t size = args.experts / args.groups;
    groups.resize(args.groups), open.assign(args.groups, 0);
    for (int64_t g = 0; g < args.groups; ++g) {
        Entry best[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
        for (int64_t i = g * size; i < (g + 1) * size; ++i) {
            if (larger(choice[i], best[0])) best[1] = best[0], best[0] = choice[i];
            else if (larger(choice[i], best[1])) best[1] = choice[i];
        }
        groups[g] = {args.bias ? best[0].first + best[1].first : best[0].first, static_cast<int32_t>(g)};
    }
    select(groups, args.top_groups);
    for (int64_t i = 0; i < args.top_groups; ++i) open[groups[i].second] = 1;
    for (int64_t e = 0; e < args.experts; ++e)
        if (!open[e / size]) choice[e].first = -INFINITY;
}

void route_rows(const Routing& args, int64_t begin, int64_t end) {
    static thread_local std::vector<float> scores;
    static thread_local std::vector<Entry> choice;
    scores.resize(args.experts), choice.resize(args.experts);
    for (int64_t row = begin; row < end; ++row) {
        if (args.is_bf16) score<bf16>(args, row, scores);
        else score<float>(args, row, scores);
        for (int64_t e = 0; e < args.experts; ++e)
            choice[e] = {scores[e] + (args.bias ? args.bias[e] : 0.0f), static_cast<int32_t>(e)};
        if (args.top_groups < args.groups) choose_groups(args, choice);
        select(choice, args.top_k);
        int32_t* ids = args.ids + row * args.top_k;
        float *weights = args.weights + row * args.top_k, total = 0;
        for (int64_t i = 0; i < args.top_k; ++i) total += weights[i] = scores[ids[i] = choice[i].second];
        const float divisor = args.renormalize ? total + LEAST_SUM : 1.0f;
        for (int64_t i = 0; i < args.top_k; ++i) weights[i] = weights[i] / divisor * args.scale;
    }
}

}  // namespace
}  // namespace blade

BLADE_EXPORT void blade_moe_route(int is_bf16, const void* logits, const float* bias, int64_t tokens, int64_t experts,
                                  int64_t top_k, int sigmoid, int renormalize, float scale, int64_t groups,
                                  int64_t top_groups, int32_t* ids, float* weights) {
    const blade::Routing args{is_bf16 != 0, logits, bias,   experts,    top_k, sigmoid != 0, renormalize != 0,
                              scale,        groups, top_groups, ids, weights};
    blade::split(tokens, tokens * experts * 8, [&](int64_t begin, int64_t end) { blade::route_rows(args, begin, end); });
}
