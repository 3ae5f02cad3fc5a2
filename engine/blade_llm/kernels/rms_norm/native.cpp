// RMS normalisation, alone and after a residual addition, rounding where the torch implementation rounds.
#include <cmath>

#include "operators.h"
#include "simd.h"

namespace blade {
namespace {

struct Norm {
    bool is_bf16;
    const void *x, *residual, *weight;  // residual may be null
    void *total, *out;                  // total = x + residual, may be x
    int64_t hidden;
    float eps;
    bool unit_offset;
};

template <int W, class T, bool UNIT_OFFSET>
BLADE_INLINE void norm_rows(const Norm& norm, int64_t begin, int64_t end) {
    const int64_t hidden = norm.hidden, whole = hidden / W * W;
    const T* weight = static_cast<const T*>(norm.weight);
    for (int64_t row = begin; row < end; row++) {
        const T* x = static_cast<const T*>(norm.x) + row * hidden;
        if (norm.residual) {
            const T* residual = static_cast<const T*>(norm.residual) + row * hidden;
            T* total = static_cast<T*>(norm.total) + row * hidden;
            for (int64_t d = 0; d < whole; d += W) store<W>(total + d, load<W>(x + d) + load<W>(residual + d));
            for (int64_t d = whole; d < hidden; d++) store_one(total + d, to_float(x[d]) + to_float(residual[d]));
            x = total;
        }
        Float<W> squares[4] = {};
        int64_t d = 0;
        for (; d + 4 * W <= hidden; d += 4 * W)
            for (int i = 0; i < 4; i++) {
                Float<W> value = load<W>(x + d + i * W);
                squares[i] += value * value;
            }
        float rest = 0;
        for (; d < hidden; d++) rest += to_float(x[d]) * to_float(x[d]);
        rest += sum<W>((squares[0] + squares[1]) + (squares[2] + squares[3]));
        const float factor = 1.0f / std::sqrt(rest / static_cast<float>(hidden) + norm.eps);
        T* out = static_cast<T*>(norm.out) + row * hidden;
        for (d = 0; d < whole; d += W) {
            Float<W> normed = load<W>(x + d) * factor, scale = load<W>(weight + d);
            store<W>(out + d, UNIT_OFFSET ? normed * (1.0f + scale) : rounded<W, T>(normed) * scale);
        }
        for (; d < hidden; d++) {
            float normed = to_float(x[d]) * factor, scale = to_float(weight[d]);
            store_one(out + d, UNIT_OFFSET ? normed * (1.0f + scale) : rounded_one<T>(normed) * scale);
        }
    }
}

template <int W>
BLADE_INLINE void norm_kernel(const Norm& norm, int64_t begin, int64_t end) {
    if (norm.is_bf16 && norm.unit_offset) return norm_rows<W, bf16, true>(norm, begin, end);
    if (norm.is_bf16) return norm_rows<W, bf16, false>(norm, begin, end);
    if (norm.unit_offset) return norm_rows<W, float, true>(norm, begin, end);
    norm_rows<W, float, false>(norm, begin, end);
}

BLADE_FOR_EACH_ISA(norm, norm_kernel, Norm)

}  // namespace
}  // namespace blade

BLADE_EXPORT void blade_rms_norm(int is_bf16, const void* x, const void* residual, void* total, const void* weight,
                                 void* out, int64_t rows, int64_t hidden, float eps, int unit_offset) {
    const blade::Norm args{is_bf16 != 0, x, residual, weight, total, out, hidden, eps, unit_offset != 0};
    blade::split(rows, rows * hidden, [&](int64_t begin, int64_t end) { blade::norm(args, begin, end); });
}
