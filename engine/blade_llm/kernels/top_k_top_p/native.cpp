// Top-k and top-p thresholds of a row without sorting it.
//
// First a bound that the threshold cannot fall below, from one pass: the k-th largest of the maxima of small groups
// (each of k groups holds a logit at least that large), or the logit at which a whole vocabulary together would have
// less than 1 - p of the probability. Only what reaches the bound is copied out and selected from: by histograms of
// probability mass that close in on the threshold, then by sorting the few logits left in one bin.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <vector>

#include "simd.h"

namespace blade {
namespace {

constexpr int64_t SORTED = 1024;  // so many logits are simply sorted
constexpr int BINS = 2048;

struct Filters {
    const float* logits;
    const int64_t* top_k;
    const float* top_p;
    int64_t vocabulary;
    float* thresholds;
};

template <int W>
BLADE_INLINE float largest_of(const Float<W>& values) {
    float largest = values[0];
    for (int i = 1; i < W; i++) largest = std::max(largest, values[i]);
    return largest;
}

// NaN is left out.
template <int W>
BLADE_INLINE float maximum(const float* x, int64_t count) {
    Float<W> lanes[4];
    for (auto& lane : lanes) lane = Float<W>{} - INFINITY;
    int64_t d = 0;
    for (; d + 4 * W <= count; d += 4 * W)
        for (int i = 0; i < 4; i++) {
            Float<W> value = load<W>(x + d + i * W);
            lanes[i] = value > lanes[i] ? value : lanes[i];
        }
    float largest = largest_of<W>(max<W>(max<W>(lanes[0], lanes[1]), max<W>(lanes[2], lanes[3])));
    for (; d < count; d++) largest = x[d] > largest ? x[d] : largest;
    return largest;
}

// exp(x - top) of each, in weights where that is not null; returns their sum. Minus infinity counts as nothing.
template <int W>
BLADE_INLINE double exponentials(const float* x, int64_t count, float top, float* weights) {
    double total = 0;
    constexpr int64_t block = 1024;  // summed in fp32
    for (int64_t first = 0; first < count; first += block) {
        const int64_t last = std::min(first + block, count);
        Float<W> sums = {};
        int64_t d = first;
        for (; d + W <= last; d += W) {
            Float<W> value = exp2<W>((load<W>(x + d) - top) * 1.44269504f);
            if (weights) store<W>(weights + d, value);
            sums += value;
        }
        for (; d < last; d++) {
            float value = std::exp(x[d] - top);
            if (weights) weights[d] = value;
            total += value;
        }
        total += sum<W>(sums);
    }
    return total;
}

// The largest logit, and in `bound` what at least `k` logits reach, and rarely many more.
template <int W>
BLADE_INLINE float bound_of_top_k(const float* x, int64_t count, int64_t k, std::vector<float>& maxima, float& bound) {
    const int64_t rows = std::min<int64_t>(64, count / (std::max<int64_t>(4 * k, 2048)));  // vectors to a group
    bound = -FLT_MAX;
    if (rows < 2) return maximum<W>(x, count);
    maxima.resize(count / rows + rows * W);
    float* to = maxima.data();
    int64_t d = 0;
    for (; d + rows * W <= count; d += rows * W, to += W) {
        Float<W> best = Float<W>{} - INFINITY;
        for (int64_t i = 0; i < rows; i++) {
            Float<W> value = load<W>(x + d + i * W);
            best = value > best ? value : best;
        }
        store<W>(to, best);
    }
    for (; d < count; d++) *to++ = x[d] > -INFINITY ? x[d] : -INFINITY;
    maxima.resize(to - maxima.data());
    const float top = maximum<W>(maxima.data(), static_cast<int64_t>(maxima.size()));
    std::nth_element(maxima.begin(), maxima.begin() + (k - 1), maxima.end(), std::greater<float>());
    bound = std::max(maxima[k - 1], -FLT_MAX);
    return top;
}

// The logits of at least `bound`.
template <int W>
BLADE_INLINE void copy_from(const float* x, int64_t count, float bound, std::vector<float>& kept) {
    kept.resize(count);
    float* to = kept.data();
    for (int64_t d = 0; d < count; d += 2 * W) {
        if (d + 2 * W <= count) {
            const Float<W> needed = Float<W>{} + bound;
            if (!any<W>(at_least<W>(load<W>(x + d), needed) | at_least<W>(load<W>(x + d + W), needed))) continue;
        }
        for (int64_t i = d; i < std::min(d + 2 * W, count); i++) {
            *to = x[i];
            to += x[i] >= bound;
        }
    }
    kept.resize(to - kept.data());
}

// The bin of each: they divide [most - BINS / per_bin, most] evenly, the largest first.
template <int W>
BLADE_INLINE void bins_of(const float* x, int64_t count, float most, float per_bin, int32_t* bins) {
    const Float<W> last = Float<W>{} + static_cast<float>(BINS - 1);
    int64_t d = 0;
    for (; d + W <= count; d += W) {
        Float<W> place = (most - load<W>(x + d)) * per_bin;
        auto bin = __builtin_convertvector(place > last ? last : place, typename Lanes<W>::Int);
        memcpy(bins + d, &bin, sizeof bin);
    }
    for (; d < count; d++) bins[d] = static_cast<int32_t>(std::min((most - x[d]) * per_bin, BINS - 1.0f));
}

// The smallest logit of the nucleus; `kept` are the logits that top-k left, all finite, none below `least`.
template <int W>
BLADE_INLINE float smallest_of_nucleus(std::vector<float>& kept, float least, float most, double total, float p) {
    static thread_local std::vector<float> weights, next;
    static thread_local std::vector<int32_t> bins;
    const float top = most;
    double above = 0;
    while (static_cast<int64_t>(kept.size()) > SORTED) {
        const int64_t count = static_cast<int64_t>(kept.size());
        if (least <= -FLT_MAX) {
            const auto [low, high] = std::minmax_element(kept.begin(), kept.end());
            least = *low, most = *high;
        }
        if (!(most > least)) return most;
        weights.resize(count), bins.resize(count);
        exponentials<W>(kept.data(), count, top, weights.data());
        bins_of<W>(kept.data(), count, most, BINS / std::max(most - least, FLT_MIN), bins.data());
        double masses[2][BINS] = {};  // two, because an addition to a bin must wait for the one before
        for (int64_t i = 0; i < count; i++) masses[i & 1][bins[i]] += weights[i];
        int bin = 0;
        for (; bin < BINS - 1; bin++) {
            const double mass = masses[0][bin] + masses[1][bin];
            if (!(static_cast<float>((above + mass) / total) < p)) break;
            above += mass;
        }
        next.clear();
        for (int64_t i = 0; i < count; i++)
            if (bins[i] == bin) next.push_back(kept[i]);
        if (next.empty()) return *std::min_element(kept.begin(), kept.end());  // the mass fell short by rounding
        if (next.size() == kept.size()) break;
        kept.swap(next);
        least = -FLT_MAX;
    }
    std::sort(kept.begin(), kept.end(), std::greater<float>());
    for (float x : kept) {
        above += std::exp(x - top);
        if (!(static_cast<float>(above / total) < p)) return x;
    }
    return kept.back();
}

template <int W>
BLADE_INLINE void filter_kernel(const Filters& filters, int64_t begin, int64_t end) {
    static thread_local std::vector<float> kept, scratch;
    const int64_t count = filters.vocabulary;
    for (int64_t row = begin; row < end; row++) {
        const float* x = filters.logits + row * count;
        const int64_t k = filters.top_k[row];
        const float p = filters.top_p[row];
        const bool limited = k > 0 && k < count, nucleus = p < 1.0f;
        float& threshold = filters.thresholds[row] = -INFINITY;
        if (!limited && !nucleus) continue;
        float bound = 0;
        const float top = limited ? bound_of_top_k<W>(x, count, k, scratch, bound) : maximum<W>(x, count);
        if (!std::isfinite(top)) {
            threshold = top;
            continue;
        }
        double total = 0;
        if (!limited) {
            total = exponentials<W>(x, count, top, nullptr);
            bound = static_cast<float>(top + std::log(total * (1.0 - p) / static_cast<double>(count)) - 0.01);
            bound = std::min(std::max(bound, -FLT_MAX), top);
        }
        copy_from<W>(x, count, bound, kept);
        if (limited) {
            if (k <= static_cast<int64_t>(kept.size())) {
                std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), std::greater<float>());
                threshold = kept[k - 1];
            }
            if (!nucleus) continue;
            scratch.assign(kept.begin(), kept.end());
            copy_from<W>(scratch.data(), static_cast<int64_t>(scratch.size()), std::max(threshold, -FLT_MAX), kept);
            total = exponentials<W>(kept.data(), static_cast<int64_t>(kept.size()), top, nullptr);
        }
        threshold = std::max(threshold, smallest_of_nucleus<W>(kept, limited ? -FLT_MAX : bound, top, total, p));
    }
}

BLADE_FOR_EACH_ISA(filter, filter_kernel, Filters)

}  // namespace
}  // namespace blade

BLADE_EXPORT void blade_top_k_top_p(const float* logits, const int64_t* top_k, const float* top_p, int64_t rows,
                                    int64_t vocabulary, float* thresholds) {
    const blade::Filters args{logits, top_k, top_p, vocabulary, thresholds};
    blade::split(rows, rows * vocabulary, [&](int64_t begin, int64_t end) { blade::filter(args, begin, end); });
}
