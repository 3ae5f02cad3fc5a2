// Index of each row's largest element: a maximum by blocks, and a search only in a block that beats all before it.
#include <cmath>

#include "simd.h"

namespace blade {
namespace {

struct Rows {
    bool is_bf16;
    const void* values;
    int64_t stride, length;
    int64_t* out;
};

template <int W, class T>
BLADE_INLINE void argmax_rows(const Rows& rows, int64_t begin, int64_t end) {
    constexpr int64_t block = 2048;
    for (int64_t row = begin; row < end; row++) {
        const T* x = static_cast<const T*>(rows.values) + row * rows.stride;
        float best = -INFINITY;
        int64_t winner = 0;
        for (int64_t first = 0; first < rows.length; first += block) {
            const int64_t last = first + block < rows.length ? first + block : rows.length;
            Float<W> lanes[4];
            for (auto& lane : lanes) lane = Float<W>{} - INFINITY;
            int64_t d = first;
            for (; d + 4 * W <= last; d += 4 * W)
                for (int i = 0; i < 4; i++) {
                    Float<W> value = load<W>(x + d + i * W);
                    lanes[i] = value > lanes[i] ? value : lanes[i];  // NaN never is
                }
            lanes[0] = max<W>(max<W>(lanes[0], lanes[1]), max<W>(lanes[2], lanes[3]));
            float largest = -INFINITY;
            for (int i = 0; i < W; i++) largest = lanes[0][i] > largest ? lanes[0][i] : largest;
            for (; d < last; d++) largest = to_float(x[d]) > largest ? to_float(x[d]) : largest;
            if (!(largest > best)) continue;
            best = largest;
            for (winner = first; to_float(x[winner]) != largest;) winner++;
        }
        rows.out[row] = winner;
    }
}

template <int W>
BLADE_INLINE void argmax_kernel(const Rows& rows, int64_t begin, int64_t end) {
    if (rows.is_bf16) return argmax_rows<W, bf16>(rows, begin, end);
    argmax_rows<W, float>(rows, begin, end);
}

BLADE_FOR_EACH_ISA(argmax, argmax_kernel, Rows)

}  // namespace
}  // namespace blade

BLADE_EXPORT void blade_argmax(int is_bf16, const void* values, int64_t stride, int64_t rows, int64_t length,
                               int64_t* out) {
    const blade::Rows args{is_bf16 != 0, values, stride, length, out};
    blade::split(rows, rows * length, [&](int64_t begin, int64_t end) { blade::argmax(args, begin, end); });
}
