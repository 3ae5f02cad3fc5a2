// The token with the largest sum of logit and Gumbel noise, found in one pass.
//
// Noise is minus the logarithm of minus the logarithm of a hash, but nearly every token can be dismissed without any
// logarithm: to reach the best sum so far it needs noise of at least `bound - logit`, that is a uniform number of at
// most exp(logit - bound), of which a piecewise linear bound is two operations. A group whose largest logit is
// more than MOST_NOISE below the bound is not even hashed. Sums are compared in fp64; a row where a second token comes
// so close that fp32 might order the two differently is reported and left to the torch implementation.
#include <cmath>

#include "simd.h"

namespace blade {
namespace {

constexpr float MOST_NOISE = 22.9f;  // of the smallest uniform number, 2^-33

struct Best {
    double sum = -INFINITY, second = -INFINITY;
    int64_t token = -1;
    bool nan = false;

    void add(double candidate, int64_t at) {
        if (candidate > sum) {
            second = sum, sum = candidate, token = at;
        } else if (candidate > second) {
            second = candidate;
        }
    }
};

double rounding(double sum) { return 1e-5 + std::fabs(sum) * 0x1p-21; }

struct Sampling {
    const float *logits, *thresholds;
    const int64_t *keys, *positions;  // [rows, 2], [rows]
    int64_t vocabulary, parts;
    Best* best;  // [rows * parts]
};

template <class Word>
BLADE_INLINE Word mix(const Word& word, uint32_t add) {
    Word x = (word ^ (word >> 16)) * 0x7FEB352Du + add;
    x = (x ^ (x >> 15)) * 0x2C1B3C6Du;
    x = (x ^ (x >> 14)) * 0x297A2D39u;
    return x ^ (x >> 16);
}

// As gumbel_noise in torch.py, rounded to fp32 up to the logarithms.
double noise(uint32_t bits) {
    float uniform = (static_cast<float>(bits) + 0.5f) * 0x1p-32f;
    if (uniform > 1.0f - 0x1p-24f) uniform = 1.0f - 0x1p-24f;
    return -std::log(-std::log1p(-static_cast<double>(uniform)));
}

// Units are parts of rows, unit = row * parts + part.
template <int W>
BLADE_INLINE void sample_kernel(const Sampling& sampling, int64_t begin, int64_t end) {
    using Word = typename Lanes<W>::Word;
    using Int = typename Lanes<W>::Int;
    constexpr int vectors = 4, group = vectors * W;
    constexpr float per_nat = 1.44269504f * 0x1p23f;
    Word lane;
    for (int i = 0; i < W; i++) lane[i] = i;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t row = unit / sampling.parts, part = unit % sampling.parts;
        const int64_t first = sampling.vocabulary * part / sampling.parts, last = sampling.vocabulary * (part + 1) / sampling.parts;
        const float* logits = sampling.logits + row * sampling.vocabulary;
        const float threshold = sampling.thresholds[row];
        const uint32_t position = mix<uint32_t>(static_cast<uint32_t>(sampling.positions[row]) + 0x2545F491u, 0);
        const uint32_t key = mix<uint32_t>(static_cast<uint32_t>(sampling.keys[2 * row]) ^ position, 0);
        const uint32_t added = mix<uint32_t>(static_cast<uint32_t>(sampling.keys[2 * row + 1]) ^ key, 0);
        Best best;
        float bound = -1e30f;
        Word numbers = ~Word{};
        float copy[group];
        for (int64_t at = first; at < last; at += group) {
            const float* x = logits + at;
            if (at + group > last) {  // the last tokens, and some that never win
                for (int i = 0; i < group; i++) copy[i] = at + i < last ? x[i] : -INFINITY;
                x = copy;
            }
            Float<W> logit[vectors], largest;
            for (int i = 0; i < vectors; i++) {
                logit[i] = load<W>(x + i * W);
                numbers &= at_least<W>(logit[i], logit[i]);
            }
            largest = max<W>(max<W>(logit[0], logit[1]), max<W>(logit[2], logit[3]));
            const float floor = threshold > bound - MOST_NOISE ? threshold : bound - MOST_NOISE;
            if (!any<W>(at_least<W>(largest, Float<W>{} + floor))) continue;
            uint32_t wins[group];
            Word seen = {};
            const float offset = (127.0f + 32.0f + 1e-4f) * 0x1p23f - bound * per_nat;
            for (int i = 0; i < vectors; i++) {
                Word bits = mix<Word>((lane + static_cast<uint32_t>(at + i * W)) ^ key, added);
                Float<W> power = logit[i] * per_nat + offset;
                power = max<W>(power, Float<W>{});
                power = power < 0x7f000000 * 1.0f ? power : Float<W>{} + 0x7f000000 * 1.0f;
                Float<W> limit = (Float<W>)__builtin_convertvector(power, Int);
                Word can_win = at_least<W>(limit, __builtin_convertvector(bits, Float<W>)) &
                               at_least<W>(logit[i], Float<W>{} + threshold);
                memcpy(wins + i * W, &can_win, sizeof can_win);
                seen |= can_win;
            }
            if (!any<W>(seen)) continue;
            for (int i = 0; i < group; i++) {
                if (!wins[i] || at + i >= last) continue;
                const uint32_t bits = mix<uint32_t>(static_cast<uint32_t>(at + i) ^ key, added);
                best.add(static_cast<double>(x[i]) + noise(bits), at + i);
            }
            if (best.token >= 0) bound = static_cast<float>(best.sum - 2 * rounding(best.sum));
        }
        best.nan = any<W>(~numbers);
        sampling.best[unit] = best;
    }
}

BLADE_FOR_EACH_ISA(sample, sample_kernel, Sampling)

}  // namespace
}  // namespace blade

// Writes a token for every row; -1 for rows that need the torch implementation, whose number is returned.
BLADE_EXPORT int64_t blade_gumbel_argmax(const float* logits, const float* thresholds, const int64_t* keys,
                                         const int64_t* positions, int64_t rows, int64_t vocabulary, int64_t* out) {
    constexpr int64_t max_units = 1024;
    const int64_t threads = omp_get_max_threads();
    const int64_t parts = rows >= threads ? 1 : (threads + rows - 1) / rows;
    int64_t left = 0;
    for (int64_t done = 0, step = max_units / parts; done < rows; done += step) {
        const int64_t now = rows - done < step ? rows - done : step;
        blade::Best best[max_units];
        const blade::Sampling args{logits + done * vocabulary, thresholds + done, keys + 2 * done, positions + done,
                               vocabulary, parts, best};
        blade::split(now * parts, now * vocabulary * 4, [&](int64_t begin, int64_t end) { blade::sample(args, begin, end); });
        for (int64_t row = 0; row < now; row++) {
            blade::Best all;
            for (int64_t part = 0; part < parts; part++) {
                const blade::Best& one = best[row * parts + part];
                all.add(one.sum, one.token);
                all.add(one.second, one.token);
                all.nan |= one.nan;
            }
            const bool sure = all.token >= 0 && !all.nan && std::isfinite(all.sum) &&
                              all.second < all.sum - blade::rounding(all.sum);
            out[done + row] = sure ? all.token : -1;
            left += !sure;
        }
    }
    return left;
}
