// Activations, plain or times the other half, rounding where the torch implementation rounds.
#include "operators.h"
#include "simd.h"

namespace blade {
namespace {

// The numbers are FORMULAS in kinds.py.
enum class Formula : int { silu = 0, gelu = 1, gelu_tanh = 2, quick_gelu = 3, relu = 4, relu2 = 5 };

struct Rows {
    bool is_bf16;
    Formula formula;
    bool gated;
    const void* x;
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

// Below -87 nothing is left of x * sigmoid(x) in fp32.
template <int W>
BLADE_INLINE Float<W> bounded(const Float<W>& x) {
    Float<W> least = Float<W>{} - 87.0f;
    return x < least ? least : x;
}

template <int W>
BLADE_INLINE Float<W> sigmoid(const Float<W>& x) {
    return reciprocal<W>(1.0f + exp2<W>(bounded<W>(x) * -1.44269504f));
}

// x (1 + erf(x / sqrt(2))) / 2, with 1 - erf(z) = polynomial(1 / (1 + 0.327 z)) exp(-z^2) to 1.5e-7 (Abramowitz &
// Stegun, 7.1.26).
template <int W>
BLADE_INLINE Float<W> gelu(const Float<W>& x) {
    const Float<W> zero = {}, size = x < zero ? -x : x;
    const Float<W> t = reciprocal<W>(1.0f + size * (0.3275911f * 0.70710678f));
    Float<W> tail = t * 1.061405429f - 1.453152027f;
    tail = tail * t + 1.421413741f;
    tail = tail * t - 0.284496736f;
    tail = (tail * t + 0.254829592f) * t;
    tail *= exp2<W>(x * x * (-0.5f * 1.44269504f));
    return (x > zero ? x : zero) - 0.5f * size * tail;
}

template <int W, Formula F>
BLADE_INLINE Float<W> apply(const Float<W>& x) {
    if constexpr (F == Formula::silu) {
        Float<W> least = bounded<W>(x);
        return least * reciprocal<W>(1.0f + exp2<W>(least * -1.44269504f));
    }
    if constexpr (F == Formula::gelu) return gelu<W>(bounded<W>(x));
    if constexpr (F == Formula::gelu_tanh) {  // (1 + tanh(y)) / 2 = sigmoid(2y)
        Float<W> least = bounded<W>(x);
        return least * sigmoid<W>(least * (1.5957691216f + 0.0713548162f * (least * least)));
    }
    if constexpr (F == Formula::quick_gelu) {
        Float<W> least = bounded<W>(x);
        return least * sigmoid<W>(least * 1.702f);
    }
    const Float<W> zero = {}, positive = x < zero ? zero : x;
    return F == Formula::relu ? positive : positive * positive;
}

template <int W, class T, Formula F, bool GATED>
BLADE_INLINE Float<W> result(const T* x, const T* up) {
    if constexpr (GATED) return rounded<W, T>(apply<W, F>(load<W>(x))) * load<W>(up);
    return apply<W, F>(load<W>(x));
}

template <int W, class T, Formula F, bool GATED>
BLADE_INLINE void activate_rows(const Rows& args, int64_t begin, int64_t end) {
    const int64_t inner = args.inner, whole = inner / W * W;
    for (int64_t row = begin; row < end; row++) {
        const T *x = static_cast<const T*>(args.x) + row * (GATED ? 2 : 1) * inner, *up = GATED ? x + inner : x;
        T* out = static_cast<T*>(args.out) + row * inner;
        for (int64_t d = 0; d < whole; d += W) store<W>(out + d, result<W, T, F, GATED>(x + d, up + d));
        if (whole == inner) continue;
        T tail[3][W] = {};
        memcpy(tail[0], x + whole, (inner - whole) * sizeof(T));
        memcpy(tail[1], up + whole, (inner - whole) * sizeof(T));
        store<W>(tail[2], result<W, T, F, GATED>(tail[0], tail[1]));
        memcpy(out + whole, tail[2], (inner - whole) * sizeof(T));
    }
}

template <int W, Formula F>
BLADE_INLINE void with_formula(const Rows& args, int64_t begin, int64_t end) {
    if (args.is_bf16) {
        if (args.gated) return activate_rows<W, bf16, F, true>(args, begin, end);
        return activate_rows<W, bf16, F, false>(args, begin, end);
    }
    if (args.gated) return activate_rows<W, float, F, true>(args, begin, end);
    activate_rows<W, float, F, false>(args, begin, end);
}

template <int W>
BLADE_INLINE void activate_kernel(const Rows& args, int64_t begin, int64_t end) {
    switch (args.formula) {
        case Formula::silu: return with_formula<W, Formula::silu>(args, begin, end);
        case Formula::gelu: return with_formula<W, Formula::gelu>(args, begin, end);
        case Formula::gelu_tanh: return with_formula<W, Formula::gelu_tanh>(args, begin, end);
        case Formula::quick_gelu: return with_formula<W, Formula::quick_gelu>(args, begin, end);
        case Formula::relu: return with_formula<W, Formula::relu>(args, begin, end);
        case Formula::relu2: return with_formula<W, Formula::relu2>(args, begin, end);
    }
}

BLADE_FOR_EACH_ISA(activate, activate_kernel, Rows)

}  // namespace
}  // namespace blade

BLADE_EXPORT void blade_activate(int is_bf16, int formula, int gated, const void* x, void* out, int64_t rows,
                                 int64_t inner) {
    const blade::Rows args{is_bf16 != 0, static_cast<blade::Formula>(formula), gated != 0, x, out, inner};
    blade::split(rows, rows * inner * 2, [&](int64_t begin, int64_t end) { blade::activate(args, begin, end); });
}
