// The sum of the ranks' numbers: in rank order, in fp32, rounded once.
#pragma once

#include "segment.h"
#include "simd.h"

namespace blade {

// IEEE half precision.
struct half {
    uint16_t bits;
};

inline float to_float(half value) {
    const uint32_t magnitude = value.bits & 0x7fff, sign = (value.bits & 0x8000u) << 16;
    uint32_t bits = magnitude << 13;
    float result;
    if (magnitude >= 0x7c00) {
        bits |= 0x7f800000;
        memcpy(&result, &bits, sizeof result);
    } else {
        memcpy(&result, &bits, sizeof result);
        result *= 0x1p112f;  // the difference of the exponents' biases; subnormal numbers become normal
    }
    memcpy(&bits, &result, sizeof bits);
    bits |= sign;
    memcpy(&result, &bits, sizeof result);
    return result;
}

inline half to_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t result;
    if (magnitude > 0x7f800000) {
        result = 0x7e00;
    } else if (magnitude >= 0x477ff000) {  // what rounds to more than the largest
        result = 0x7c00;
    } else if (magnitude < 0x38800000) {  // subnormal: next to 0.5, fp32 has the same steps
        float shifted;
        memcpy(&shifted, &magnitude, sizeof shifted);
        shifted += 0.5f;
        memcpy(&result, &shifted, sizeof result);
        result -= 0x3f000000;
    } else {
        result = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    }
    return {static_cast<uint16_t>(sign | result)};
}

template <int W>
BLADE_INLINE Float<W> load(const half* from) {
    Float<W> result;
    typename Lanes<W>::Half bits;
    memcpy(&bits, from, sizeof bits);
    if constexpr (W == 16) {
        asm("vcvtph2ps %1, %0" : "=v"(result) : "v"(bits));
    } else if constexpr (W == 8) {
        asm("vcvtph2ps %1, %0" : "=x"(result) : "x"(bits));
    } else {
        for (int i = 0; i < W; i++) result[i] = to_float(from[i]);
    }
    return result;
}

template <int W>
BLADE_INLINE void store(half* to, const Float<W>& value) {
    typename Lanes<W>::Half bits;
    if constexpr (W == 16) {
        asm("vcvtps2ph $0, %1, %0" : "=v"(bits) : "v"(value));
    } else if constexpr (W == 8) {
        asm("vcvtps2ph $0, %1, %0" : "=x"(bits) : "x"(value));
    } else {
        for (int i = 0; i < W; i++) bits[i] = to_half(value[i]).bits;
    }
    memcpy(to, &bits, sizeof bits);
}

namespace collectives {

// The codes of dtypes; the first two as everywhere.
enum class DType : int32_t { fp32 = 0, bf16 = 1, fp16 = 2 };

inline int64_t item_bytes(DType dtype) { return dtype == DType::fp32 ? 4 : 2; }

struct Sum {
    DType dtype;
    int ranks;
    const char* parts[MAX_RANKS];
    char* out;  // may be one of the parts
};

template <int W, class T>
BLADE_INLINE void sum_of(const Sum& args, int64_t begin, int64_t end) {
    int64_t i = begin;
    for (; i + W <= end; i += W) {
        Float<W> total = load<W>(reinterpret_cast<const T*>(args.parts[0]) + i);
        for (int rank = 1; rank < args.ranks; rank++)
            total += load<W>(reinterpret_cast<const T*>(args.parts[rank]) + i);
        store<W>(reinterpret_cast<T*>(args.out) + i, total);
    }
    if (i == end) return;
    T tail[W] = {};
    Float<W> total = {};
    for (int rank = 0; rank < args.ranks; rank++) {
        memcpy(tail, reinterpret_cast<const T*>(args.parts[rank]) + i, (end - i) * sizeof(T));
        total = rank ? total + load<W>(tail) : load<W>(tail);
    }
    store<W>(tail, total);
    memcpy(reinterpret_cast<T*>(args.out) + i, tail, (end - i) * sizeof(T));
}

template <int W>
BLADE_INLINE void sum_kernel(const Sum& args, int64_t begin, int64_t end) {
    switch (args.dtype) {
        case DType::fp32: return sum_of<W, float>(args, begin, end);
        case DType::bf16: return sum_of<W, bf16>(args, begin, end);
        case DType::fp16: return sum_of<W, half>(args, begin, end);
    }
}

BLADE_FOR_EACH_ISA(sum_parts, sum_kernel, Sum)

}  // namespace collectives
}  // namespace blade
