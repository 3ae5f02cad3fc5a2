// The decoder layers of a step in one call. Each operator is the one that Python would call; what is saved is all that
// Python does between them, which at batch 1 is a tenth of the step.
#pragma once

#include <algorithm>

#include "operators.h"

namespace blade::layers {

using lora::Factors;

// What lies between the MLP's two products stays in the caches; the weights are read again for each so many tokens.
constexpr int64_t MLP_TOKENS = 512;

// As _Layer in native.py.
struct Layer {
    const bf16 *input_norm, *input_norm_bias;  // biases may be null
    const Weight *qkv, *output;
    const bf16 *post_attention_norm, *post_attention_norm_bias;
    const Weight *gate_up, *down;     // null where there is a mixture of experts
    const Mixture* mixture;    // or null
    const bf16 *q_norm, *k_norm;  // both or neither
    const attention::Form* attention;
    const Factors *const *qkv_adapters, *const *output_adapters, *const *gate_up_adapters, *const *down_adapters;
};

// The numbers are NORMS in weights.py.
enum class NormKind : int64_t { rms = 0, rms_unit_offset = 1, layer = 2 };

// As _Decoder in native.py.
struct Decoder {
    const Layer* layers;
    int64_t hidden, inner, heads, kv_heads, head_dim, formula, gated;
    NormKind norm;
    float eps;
    collectives::Group* group;  // of the ranks that each have a part of all layers; null: this is all of them
};

// As _Step in native.py. What each array is wide enough for is said there.
struct Step {
    int64_t tokens;
    const float *cosines, *sines;
    const int64_t* slots;
    const attention::Step* attention;
    void* const* caches;  // keys and values of each layer
    bf16 *x, *residual;   // what the last layer adds, and what it is added to: at first the embeddings
    bf16 *normed, *projected, *gathered;
    char* mixture;
    const lora::Batch* adapters;             // null: no token uses any
    const lora::Batch* const* mlp_adapters;  // the same for each MLP_TOKENS of the tokens; null where none of those does
};

inline void linear(const Weight* weight, const Factors* const* table, const lora::Batch* adapters, const bf16* x,
            int64_t tokens, int64_t inputs, int64_t outputs, bf16* y) {
    blade_linear(weight, x, tokens, inputs, y);
    if (adapters) blade_lora(table, adapters, 1, x, inputs, inputs, y, outputs);
}

inline void norm(const Decoder& decoder, const bf16* x, const bf16* residual, bf16* total, const bf16* weight, const bf16* bias,
          bf16* out, int64_t tokens) {
    if (decoder.norm == NormKind::layer)
        return blade_layer_norm(1, x, residual, total, weight, bias, out, tokens, decoder.hidden, decoder.eps);
    blade_rms_norm(1, x, residual, total, weight, out, tokens, decoder.hidden, decoder.eps,
                   decoder.norm == NormKind::rms_unit_offset);
}

// What half a layer adds is the sum of what the ranks add. Returns 0, or why there is none.
inline int add_ranks(const Decoder& decoder, const Step& step) {
    constexpr int bf16_numbers = 1;
    if (!decoder.group) return 0;
    return blade_group_all_reduce(decoder.group, bf16_numbers, step.x, step.tokens * decoder.hidden);
}

// Layer `i` from behind its first norm on, whose result is in `normed`, `width` numbers a token. Returns 0, or why ranks
// cannot go on.
inline int attend_and_mlp(const Decoder* decoder, const Step* step, int64_t i, int64_t width) {
    const auto& [all, hidden, inner, heads, kv_heads, head_dim, formula, gated, norm_kind, eps, group] = *decoder;
    const auto& [tokens, cosines, sines, slots, attention, caches, x, residual, normed, projected, gathered, mixture,
                 adapters, mlp_adapters] =
        *step;
    const int64_t queries = heads * head_dim;
    const Layer& layer = all[i];
    void *keys = caches[2 * i], *values = caches[2 * i + 1];
    linear(layer.qkv, layer.qkv_adapters, adapters, normed, tokens, width, queries + 2 * kv_heads * head_dim, projected);
    blade_rope_write_kv(1, projected, cosines, sines, slots, keys, values, gathered, tokens, heads, kv_heads, head_dim,
                        layer.q_norm, layer.k_norm, eps, norm_kind == NormKind::rms_unit_offset,
                        blade_kv_rows(attention));
    blade_paged_attention(attention, gathered, queries, keys, values, normed, layer.attention);
    linear(layer.output, layer.output_adapters, adapters, normed, tokens, queries, hidden, x);
    if (const int status = add_ranks(*decoder, *step)) return status;
    norm(*decoder, x, residual, residual, layer.post_attention_norm, layer.post_attention_norm_bias, normed, tokens);
    if (layer.mixture) {
        blade_mixture(layer.mixture, normed, tokens, mixture, x);
        return add_ranks(*decoder, *step);
    }
    for (int64_t first = 0; first < tokens; first += MLP_TOKENS) {
        const int64_t some = std::min(MLP_TOKENS, tokens - first);
        const lora::Batch* own = adapters ? mlp_adapters[first / MLP_TOKENS] : nullptr;
        linear(layer.gate_up, layer.gate_up_adapters, own, normed + first * hidden, some, hidden, (gated ? 2 : 1) * inner,
               projected);
        blade_activate(1, static_cast<int>(formula), static_cast<int>(gated), projected, gathered, some, inner);
        linear(layer.down, layer.down_adapters, own, gathered, some, inner, hidden, x + first * hidden);
    }
    return add_ranks(*decoder, *step);
}

// Returns 0, or why ranks cannot go on.
inline int decoder_layers(const Decoder* decoder, const Step* step, int64_t layers) {
    for (int64_t i = 0; i < layers; i++) {
        const Layer& layer = decoder->layers[i];
        norm(*decoder, i ? step->x : step->residual, i ? step->residual : nullptr, step->residual, layer.input_norm,
             layer.input_norm_bias, step->normed, step->tokens);
        if (const int status = attend_and_mlp(decoder, step, i, decoder->hidden)) return status;
    }
    return 0;
}

}  // namespace blade::layers
