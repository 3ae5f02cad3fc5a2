// SiLU of the gate times the other half, rounding where the torch implementation rounds.
#include "operators.h"
#include "simd.h"

namespace blade {
namespace {

struct Gate {
    bool is_bf16;
    const void* gate_up;
    void* out;
    int64_t inner;
};

// 1 / x for normal positive x to 1e-7: a guess from the exponent, three times Newton; division takes three times as long.
template <int W>
BLADE_INLINE Float<W> reciprocal(const Float<W>& x) {
    Float<W> y = (Float<W>)(0x7ef311c7u - (typename Lanes<W>::Word)x);
    for (int i = 0; i < 3; i++) y = y * (2.0f - x * y);
    return y;
}

template <int W, class T>
BLADE_INLINE Float<W> silu(const Float<W>& x) {
    Float<W> least = Float<W>{} - 87.0f, bounded = x < least ? least : x;  // below, nothing is left in fp32
    return rounded<W, T>(bounded * reciprocal<W>(1.0f + exp2<W>(bounded * -1.44269504f)));
}

template <int W, class T>
BLADE_INLINE void gate_rows(const Gate& args, int64_t begin, int64_t end) {
    const int64_t inner = args.inner, whole = inner / W * W;
    for (int64_t row = begin; row < end; row++) {
        const T *gate = static_cast<const T*>(args.gate_up) + row * 2 * inner, *up = gate + inner;
        T* out = static_cast<T*>(args.out) + row * inner;
        for (int64_t d = 0; d < whole; d += W)
            store<W>(out + d, silu<W, T>(load<W>(gate + d)) * load<W>(up + d));
        if (whole == inner) continue;
        T tail[3][W] = {};
        memcpy(tail[0], gate + whole, (inner - whole) * sizeof(T));
        memcpy(tail[1], up + whole, (inner - whole) * sizeof(T));
        store<W>(tail[2], silu<W, T>(load<W>(tail[0])) * load<W>(tail[1]));
        memcpy(out + whole, tail[2], (inner - whole) * sizeof(T));
    }
}

template <int W>
BLADE_INLINE void gate_kernel(const Gate& args, int64_t begin, int64_t end) {
    if (args.is_bf16) return gate_rows<W, bf16>(args, begin, end);
    gate_rows<W, float>(args, begin, end);
}

BLADE_FOR_EACH_ISA(gate, gate_kernel, Gate)

}  // namespace
}  // namespace blade

BLADE_EXPORT void blade_silu_and_mul(int is_bf16, const void* gate_up, void* out, int64_t rows, int64_t inner) {
    const blade::Gate args{is_bf16 != 0, gate_up, out, inner};
    blade::split(rows, rows * inner * 2, [&](int64_t begin, int64_t end) { blade::gate(args, begin, end); });
}
