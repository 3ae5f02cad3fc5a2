// Index of each row's largest element: a maximum by blocks, and a search only in a block that beats all before it.
// NaN beats all, as in torch: whoever looks at the winner sees that the row is broken.
// Rows may have a bit mask of the elements that count.
#include <cmath>

#include "simd.h"

namespace blade {
namespace {

struct Rows {
    bool is_bf16;
    const void* values;
    int64_t stride, length;
    const int64_t* mask_index;  // each row's mask, -1 for none; null where no row has one
    const uint32_t* mask_words;
    int64_t* out;
};

// Among the elements whose bit is 1. Words of 32 elements without any are skipped.
template <int W, class T>
BLADE_INLINE int64_t argmax_of_allowed(const T* x, int64_t length, const uint32_t* words) {
    using Lane = typename Lanes<W>::Word;
    constexpr int64_t word_size = 32;
    Lane bit;
    for (int i = 0; i < W; i++) bit[i] = 1u << i;
    const Float<W> none = Float<W>{} - INFINITY;
    float best = -INFINITY;
    int64_t winner = -1;
    for (int64_t first = 0; first < length; first += word_size) {
        const uint32_t word = words[first / word_size];
        if (word == 0) continue;
        const int64_t last = first + word_size < length ? first + word_size : length;
        if (last - first == word_size && winner >= 0) {
            Lane better = {};
            const Float<W> bar = Float<W>{} + best;
            for (int64_t i = 0; i < word_size; i += W) {
                Float<W> value = (bit & (word >> i)) != 0 ? load<W>(x + first + i) : none;
                Lane above = value <= bar ? Lane{} : ~Lane{};
                asm("" : "+x"(above));
                better |= above;
            }
            if (!any<W>(better)) continue;
        }
        for (int64_t d = first; d < last; d++) {
            if (!(word >> (d - first) & 1)) continue;
            const float value = to_float(x[d]);
            if (value != value) return d;
            if (value > best || winner < 0) {
                winner = d;
                best = value > best ? value : best;
            }
        }
    }
    return winner < 0 ? 0 : winner;
}

template <int W, class T>
BLADE_INLINE void argmax_rows(const Rows& rows, int64_t begin, int64_t end) {
    constexpr int64_t block = 2048;
    for (int64_t row = begin; row < end; row++) {
        const T* x = static_cast<const T*>(rows.values) + row * rows.stride;
        const int64_t mask = rows.mask_index ? rows.mask_index[row] : -1;
        if (mask >= 0) {
            rows.out[row] = argmax_of_allowed<W>(x, rows.length, rows.mask_words + mask * ((rows.length + 31) / 32));
            continue;
        }
        float best = -INFINITY;
        int64_t winner = 0;
        for (int64_t first = 0; first < rows.length; first += block) {
            const int64_t last = first + block < rows.length ? first + block : rows.length;
            Float<W> lanes[4];
            for (auto& lane : lanes) lane = Float<W>{} - INFINITY;
            typename Lanes<W>::Word numbers = ~typename Lanes<W>::Word{};
            bool broken = false;
            int64_t d = first;
            for (; d + 4 * W <= last; d += 4 * W)
                for (int i = 0; i < 4; i++) {
                    Float<W> value = load<W>(x + d + i * W);
                    lanes[i] = value > lanes[i] ? value : lanes[i];  // NaN never is
                    numbers &= at_least<W>(value, value);
                }
            lanes[0] = max<W>(max<W>(lanes[0], lanes[1]), max<W>(lanes[2], lanes[3]));
            float largest = -INFINITY;
            for (int i = 0; i < W; i++) largest = lanes[0][i] > largest ? lanes[0][i] : largest;
            for (; d < last; d++) {
                const float value = to_float(x[d]);
                largest = value > largest ? value : largest;
                broken |= value != value;
            }
            if (broken || any<W>(~numbers)) {
                for (winner = first; to_float(x[winner]) == to_float(x[winner]);) winner++;
                break;
            }
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
                               const int64_t* mask_index, const uint32_t* mask_words, int64_t* out) {
    const blade::Rows args{is_bf16 != 0, values, stride, length, mask_index, mask_words, out};
    blade::split(rows, rows * length, [&](int64_t begin, int64_t end) { blade::argmax(args, begin, end); });
}
