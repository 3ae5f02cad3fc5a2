// Arithmetic on vectors of W floats, written once and compiled for every instruction set.
//
// These are the compiler's own vectors: W is 16 for AVX-512, 8 for AVX2, 4 for what every x86-64 CPU has. A kernel is a
// template over W that is forced inline into one function per instruction set, which BLADE_FOR_EACH_ISA writes. Kernels
// must not open OpenMP regions (the compiler takes those out before it inlines); `split` does, around them.
#pragma once

#include <type_traits>

#include <omp.h>

#include "bf16.h"

#define BLADE_INLINE static inline __attribute__((always_inline))

// Vectors are passed between functions that are all inlined: how they would be passed otherwise does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

// name(args, begin, end), which runs kernel<W>(args, begin, end) with the widest vectors of the CPU.
#define BLADE_FOR_EACH_ISA(name, kernel, Args)                                                                    \
    BLADE_AVX512 static void name##_avx512(const Args& a, int64_t begin, int64_t end) { kernel<16>(a, begin, end); } \
    BLADE_AVX2 static void name##_avx2(const Args& a, int64_t begin, int64_t end) { kernel<8>(a, begin, end); }   \
    static void name##_baseline(const Args& a, int64_t begin, int64_t end) { kernel<4>(a, begin, end); }          \
    static void name(const Args& a, int64_t begin, int64_t end) {                                                 \
        if (blade::isa() >= blade::Isa::avx512) return name##_avx512(a, begin, end);                              \
        if (blade::isa() >= blade::Isa::avx2) return name##_avx2(a, begin, end);                                  \
        name##_baseline(a, begin, end);                                                                           \
    }

namespace blade {

template <int W>
struct Lanes {
    typedef float Float __attribute__((vector_size(4 * W)));
    typedef int32_t Int __attribute__((vector_size(4 * W)));
    typedef uint32_t Word __attribute__((vector_size(4 * W)));
    typedef uint16_t Half __attribute__((vector_size(2 * W)));
};

template <int W>
using Float = typename Lanes<W>::Float;

template <int W>
BLADE_INLINE Float<W> load(const float* from) {
    Float<W> result;
    memcpy(&result, from, sizeof result);
    return result;
}

template <int W>
BLADE_INLINE Float<W> load(const bf16* from) {
    typename Lanes<W>::Half half;
    typename Lanes<W>::Word word;
    memcpy(&half, from, sizeof half);
    if constexpr (W == 16) {
        asm("vpmovzxwd %1, %0" : "=v"(word) : "vm"(half));  // gcc 12 makes five instructions of the conversion
    } else {
        word = __builtin_convertvector(half, typename Lanes<W>::Word);
    }
    return (Float<W>)(word << 16);
}

template <int W>
BLADE_INLINE void store(float* to, const Float<W>& value) {
    memcpy(to, &value, sizeof value);
}

BLADE_INLINE float to_float(float value) { return value; }

BLADE_INLINE void store_one(float* to, float value) { *to = value; }

BLADE_INLINE void store_one(bf16* to, float value) { *to = to_bf16(value); }

// The bits of the bf16 nearest to each, in the upper halves. The NaNs that arithmetic makes, and those of bf16 inputs,
// stay NaN.
template <int W>
BLADE_INLINE typename Lanes<W>::Word nearest_bf16(const Float<W>& value) {
    auto bits = (typename Lanes<W>::Word)value;
    return bits + 0x7fff + ((bits >> 16) & 1);
}

template <int W>
BLADE_INLINE void store(bf16* to, const Float<W>& value) {
    auto half = __builtin_convertvector(nearest_bf16<W>(value) >> 16, typename Lanes<W>::Half);
    memcpy(to, &half, sizeof half);
}

// What is left of `value` once it was stored as a T.
template <int W, class T>
BLADE_INLINE Float<W> rounded(const Float<W>& value) {
    if constexpr (std::is_same_v<T, float>) return value;
    return (Float<W>)(nearest_bf16<W>(value) & 0xffff0000u);
}

template <class T>
BLADE_INLINE float rounded_one(float value) {
    T stored;
    store_one(&stored, value);
    return to_float(stored);
}

template <int W>
BLADE_INLINE float sum(const Float<W>& values) {
    float total = 0;
    for (int i = 0; i < W; i++) total += values[i];
    return total;
}

template <int W>
BLADE_INLINE Float<W> max(const Float<W>& a, const Float<W>& b) {
    return a > b ? a : b;
}

// All bits of a lane where a >= b. The barrier keeps gcc from combining this with other masks, which it then computes
// lane by lane on AVX-512.
template <int W>
BLADE_INLINE typename Lanes<W>::Word at_least(const Float<W>& a, const Float<W>& b) {
    using Word = typename Lanes<W>::Word;
    Word mask = a >= b ? ~Word{} : Word{};
    asm("" : "+x"(mask));
    return mask;
}

template <int W>
BLADE_INLINE bool any(const typename Lanes<W>::Word& mask) {
    uint64_t words[W / 2], all = 0;
    memcpy(words, &mask, sizeof words);
    for (uint64_t word : words) all |= word;
    return all != 0;
}

// 2^x to 3e-7; about 1e-38 from x = -126 down, minus infinity included. x must be below 128.
template <int W>
BLADE_INLINE Float<W> exp2(const Float<W>& power_of_two) {
    constexpr float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, left in the lowest bits
    Float<W> x = max<W>(power_of_two, Float<W>{} - 126.0f);
    Float<W> integer = x + shift;
    Float<W> rest = x - (integer - shift);
    Float<W> power = rest * 0x1.444004p-13f + 0x1.5f0896p-10f;  // interpolates at Chebyshev's points of [-0.5, 0.5]
    power = power * rest + 0x1.3b2a1cp-7f;
    power = power * rest + 0x1.c6af6cp-5f;
    power = power * rest + 0x1.ebfbe0p-3f;
    power = power * rest + 0x1.62e430p-1f;
    power = power * rest + 1.0f;
    return (Float<W>)((typename Lanes<W>::Word)power + ((typename Lanes<W>::Word)integer << 23));
}

// Calls range(begin, end) for parts of [0, count) on as many threads as `work` is worth, this thread alone for little:
// starting the others takes about as long as a hundred thousand simple operations.
template <class Range>
inline void split(int64_t count, int64_t work, const Range& range) {
    constexpr int64_t worth_a_thread = 1 << 15;
    int64_t threads = work / worth_a_thread;
    if (threads > omp_get_max_threads()) threads = omp_get_max_threads();
    if (threads > count) threads = count;
    if (threads <= 1) return range(0, count);
#pragma omp parallel num_threads(static_cast<int>(threads))
    {
        int64_t team = omp_get_num_threads(), number = omp_get_thread_num();
        range(count * number / team, count * (number + 1) / team);
    }
}

}  // namespace blade
