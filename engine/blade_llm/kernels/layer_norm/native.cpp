// Layer normalisation, alone and after a residual addition, in fp32 and rounded once.
#include <cmath>

#include "operators.h"
#include "simd.h"

namespace blade {
namespace {

struct Norm {
    bool is_bf16;
    const void *x, *residual, *weight, *bias;  // residual and bias may be null
    void *total, *out;                         // total = x + residual, may be x
    int64_t hidden;
    float eps;
};

// The sum of the row, or of the squares of its differences from `mean`.
template <int W, bool SQUARES, class T>
BLADE_INLINE float sum_of(const T* x, int64_t hidden, float mean) {
    Float<W> sums[4] = {};
    float rest = 0;
    int64_t d = 0;
    for (; d + 4 * W <= hidden; d += 4 * W)
        for (int i = 0; i < 4; i++) {
            Float<W> value = load<W>(x + d + i * W) - mean;
            sums[i] += SQUARES ? value * value : value;
        }
    for (; d < hidden; d++) rest += SQUARES ? (to_float(x[d]) - mean) * (to_float(x[d]) - mean) : to_float(x[d]) - mean;
    return rest + sum<W>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <int W, class T>
BLADE_INLINE void norm_rows(const Norm& norm, int64_t begin, int64_t end) {
    const int64_t hidden = norm.hidden, whole = hidden / W * W;
    const T *weight = static_cast<const T*>(norm.weight), *bias = static_cast<const T*>(norm.bias);
    for (int64_t row = begin; row < end; row++) {
        const T* x = static_cast<const T*>(norm.x) + row * hidden;
        if (norm.residual) {
            const T* residual = static_cast<const T*>(norm.residual) + row * hidden;
            T* total = static_cast<T*>(norm.total) + row * hidden;
            for (int64_t d = 0; d < whole; d += W) store<W>(total + d, load<W>(x + d) + load<W>(residual + d));
            for (int64_t d = whole; d < hidden; d++) store_one(total + d, to_float(x[d]) + to_float(residual[d]));
            x = total;
        }
        const float size = static_cast<float>(hidden), mean = sum_of<W, false>(x, hidden, 0.0f) / size;
        const float factor = 1.0f / std::sqrt(sum_of<W, true>(x, hidden, mean) / size + norm.eps);
        T* out = static_cast<T*>(norm.out) + row * hidden;
        for (int64_t d = 0; d < whole; d += W) {
            Float<W> value = (load<W>(x + d) - mean) * factor * load<W>(weight + d);
            store<W>(out + d, bias ? value + load<W>(bias + d) : value);
        }
        for (int64_t d = whole; d < hidden; d++)
            store_one(out + d, (to_float(x[d]) - mean) * factor * to_float(weight[d]) + (bias ? to_float(bias[d]) : 0.0f));
    }
}

template <int W>
BLADE_INLINE void norm_kernel(const Norm& norm, int64_t begin, int64_t end) {
    if (norm.is_bf16) return norm_rows<W, bf16>(norm, begin, end);
    norm_rows<W, float>(norm, begin, end);
}

BLADE_FOR_EACH_ISA(norm, norm_kernel, Norm)

}  // namespace
}  // namespace blade

BLADE_EXPORT void blade_layer_norm(int is_bf16, const void* x, const void* residual, void* total, const void* weight,
                                   const void* bias, void* out, int64_t rows, int64_t hidden, float eps) {
    const blade::Norm args{is_bf16 != 0, x, residual, weight, bias, total, out, hidden, eps};
    blade::split(rows, rows * hidden, [&](int64_t begin, int64_t end) { blade::norm(args, begin, end); });
}
