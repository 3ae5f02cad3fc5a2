// Reading weights from memory as fast as it gives them, and the inputs that go with them.
#pragma once

#include "layout.h"

namespace blade {

// Weights on their way while others are multiplied.
struct Fetch {
    const uint8_t* next;

    // Into L2: from there the core's own prefetchers bring them nearer, which fetching into L1 only hinders on Zen 4.
    BLADE_AVX512 inline void lines(int64_t count) {
#pragma GCC unroll 32
        for (int64_t line = 0; line < count; ++line, next += 64) _mm_prefetch(next, _MM_HINT_T1);
    }
};

// A vector in two loads: Zen 4's prefetchers follow a stream of halves a sixth faster than one of whole lines.
BLADE_AVX512 static inline __m512i load_halves(const void* from) {
    const __m256i* halves = static_cast<const __m256i*>(from);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(halves)), _mm256_loadu_si256(halves + 1), 1);
}

}  // namespace blade
