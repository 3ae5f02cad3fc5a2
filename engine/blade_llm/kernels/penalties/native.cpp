// Penalties, bias and mask of a step's logits in one pass, from the model's type to fp32.
//
// Everything but the conversion touches few tokens: penalties those of the row's own text, which are counted in an array
// of the vocabulary's size that is left all zero, and the bias its entries. What a mask forbids is not even read.
#include <cmath>
#include <vector>

#include "simd.h"

namespace blade {
namespace {

constexpr int64_t WORD = 32;  // tokens

struct Changes {
    bool is_bf16;
    const void* logits;
    int64_t vocabulary, parts;
    const int32_t* table;
    int64_t table_stride;
    const int64_t *rows, *num_prompt_tokens, *lengths;
    const float* penalties;  // [rows, 3]
    const int64_t *bias_starts, *bias_tokens;
    const double* bias_values;
    const int64_t* mask_index;
    const uint32_t* mask_words;
    float* out;
};

bool allows(const uint32_t* words, int64_t token) { return !words || words[token / WORD] >> (token % WORD) & 1; }

// Tokens [first, last) of a row of fp32; a function of its own, so that nothing is fused and it rounds as torch does.
template <class T>
__attribute__((noinline)) void penalise(const Changes& c, int64_t row, int64_t first, int64_t last,
                                        const uint32_t* words) {
    static thread_local std::vector<int32_t> counts;  // 0: not seen; else 1 and how often in the output
    const float repetition = c.penalties[3 * row], presence = c.penalties[3 * row + 1],
                frequency = c.penalties[3 * row + 2];
    if (repetition == 1.0f && presence == 0.0f && frequency == 0.0f) return;
    if (static_cast<int64_t>(counts.size()) < last - first) counts.resize(last - first);
    const int32_t* tokens = c.table + c.rows[row] * c.table_stride;
    for (int64_t i = 0; i < c.lengths[row]; i++) {
        if (tokens[i] < first || tokens[i] >= last) continue;
        int32_t& count = counts[tokens[i] - first];
        count = (count ? count : 1) + (i >= c.num_prompt_tokens[row]);
    }
    const T* x = static_cast<const T*>(c.logits) + row * c.vocabulary;
    float* y = c.out + row * c.vocabulary;
    for (int64_t i = 0; i < c.lengths[row]; i++) {
        const int64_t token = tokens[i];
        if (token < first || token >= last) continue;
        const int32_t count = counts[token - first];
        counts[token - first] = 0;
        if (!count || !allows(words, token)) continue;
        float value = to_float(x[token]);
        value = value > 0 ? value / repetition : value * repetition;
        value -= static_cast<float>(count - 1) * frequency;
        if (count > 1) value -= presence;
        y[token] = value;
    }
}

void add_bias(const Changes& c, int64_t row, int64_t first, int64_t last) {
    for (int64_t i = c.bias_starts[row]; i < c.bias_starts[row + 1]; i++) {
        const int64_t token = c.bias_tokens[i];
        if (token >= first && token < last) c.out[row * c.vocabulary + token] += static_cast<float>(c.bias_values[i]);
    }
}

template <int W, class T>
BLADE_INLINE void widen(const T* x, float* y, int64_t first, int64_t last) {
    int64_t at = first;
    for (; at + W <= last; at += W) store<W>(y + at, load<W>(x + at));
    for (; at < last; at++) y[at] = to_float(x[at]);
}

template <int W, class T>
BLADE_INLINE void widen_allowed(const T* x, float* y, int64_t first, int64_t last, const uint32_t* words) {
    using Lane = typename Lanes<W>::Word;
    const Float<W> none = Float<W>{} - INFINITY;
    Lane bit;
    for (int i = 0; i < W; i++) bit[i] = 1u << i;
    int64_t at = first;
    for (; at + WORD <= last; at += WORD) {
        const uint32_t word = words[at / WORD];
        for (int64_t i = 0; i < WORD; i += W) {
            const uint32_t here = word >> i;
            if (word == 0) {
                store<W>(y + at + i, none);
            } else {
                store<W>(y + at + i, (bit & here) != 0 ? load<W>(x + at + i) : none);
            }
        }
    }
    for (; at < last; at++) y[at] = allows(words, at) ? to_float(x[at]) : -INFINITY;
}

template <int W, class T>
BLADE_INLINE void change_rows(const Changes& c, int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t row = unit / c.parts, part = unit % c.parts;
        const int64_t first = c.vocabulary * part / c.parts / WORD * WORD;
        const int64_t last = part + 1 < c.parts ? c.vocabulary * (part + 1) / c.parts / WORD * WORD : c.vocabulary;
        const T* x = static_cast<const T*>(c.logits) + row * c.vocabulary;
        float* y = c.out + row * c.vocabulary;
        const int64_t mask = c.mask_index ? c.mask_index[row] : -1;
        const uint32_t* words = mask < 0 ? nullptr : c.mask_words + mask * ((c.vocabulary + WORD - 1) / WORD);
        if (words) {
            widen_allowed<W>(x, y, first, last, words);
        } else {
            widen<W>(x, y, first, last);
        }
        penalise<T>(c, row, first, last, words);
        if (c.bias_starts) add_bias(c, row, first, last);
    }
}

// Units are parts of rows, unit = row * parts + part.
template <int W>
BLADE_INLINE void change_kernel(const Changes& changes, int64_t begin, int64_t end) {
    if (changes.is_bf16) return change_rows<W, bf16>(changes, begin, end);
    change_rows<W, float>(changes, begin, end);
}

BLADE_FOR_EACH_ISA(change, change_kernel, Changes)

}  // namespace
}  // namespace blade

BLADE_EXPORT void blade_penalties(int is_bf16, const void* logits, int64_t num_rows, int64_t vocabulary,
                                  const int32_t* table, int64_t table_stride, const int64_t* rows,
                                  const int64_t* num_prompt_tokens, const int64_t* lengths, const float* penalties,
                                  const int64_t* bias_starts, const int64_t* bias_tokens, const double* bias_values,
                                  const int64_t* mask_index, const uint32_t* mask_words, float* out) {
    if (!num_rows) return;
    const int64_t threads = omp_get_max_threads();
    const int64_t parts = num_rows >= threads ? 1 : (threads + num_rows - 1) / num_rows;
    const blade::Changes args{is_bf16 != 0, logits,    vocabulary,  parts,       table,       table_stride,
                              rows,         num_prompt_tokens, lengths, penalties, bias_starts, bias_tokens,
                              bias_values,  mask_index, mask_words, out};
    blade::split(num_rows * parts, num_rows * vocabulary,
                 [&](int64_t begin, int64_t end) { blade::change(args, begin, end); });
}
