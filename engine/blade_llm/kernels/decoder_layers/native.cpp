// The decoder layers of a step in one call. Each operator is the one that Python would call; what is saved is all that
// Python does between them, which at batch 1 is a tenth of the step.
#include <algorithm>

#include "operators.h"

namespace {

using blade::bf16;
using blade::Weight;

// What lies between the MLP's two products stays in the caches; the weights are read again for each so many tokens.
constexpr int64_t MLP_TOKENS = 512;

// As _Layer in native.py.
struct Layer {
    const bf16* input_norm;
    const Weight *qkv, *output;
    const bf16* post_attention_norm;
    const Weight *gate_up, *down;
    const bf16 *q_norm, *k_norm;  // both or neither
    int64_t window;               // 0: all tokens
};

// As _Decoder in native.py.
struct Decoder {
    const Layer* layers;
    int64_t hidden, inner, heads, kv_heads, head_dim;
    float eps, scale;
};

// As _Step in native.py. What each array is wide enough for is said there.
struct Step {
    int64_t tokens;
    const float *cosines, *sines;
    const int64_t* slots;
    const blade::attention::Step* attention;
    bf16* const* caches;  // keys and values of each layer
    bf16 *x, *residual;   // what the last layer adds, and what it is added to: at first the embeddings
    bf16 *normed, *projected, *gathered;
};

}  // namespace

BLADE_EXPORT void blade_decoder_layers(const Decoder* decoder, const Step* step, int64_t layers) {
    const auto& [all, hidden, inner, heads, kv_heads, head_dim, eps, scale] = *decoder;
    const auto& [tokens, cosines, sines, slots, attention, caches, x, residual, normed, projected, gathered] = *step;
    const int64_t queries = heads * head_dim;
    for (int64_t i = 0; i < layers; i++) {
        const Layer& layer = all[i];
        bf16 *keys = caches[2 * i], *values = caches[2 * i + 1];
        blade_rms_norm(1, i ? x : residual, i ? residual : nullptr, residual, layer.input_norm, normed, tokens, hidden, eps);
        blade_linear(layer.qkv, normed, tokens, hidden, projected);
        blade_rope_write_kv(1, projected, cosines, sines, slots, keys, values, gathered, tokens, heads, kv_heads, head_dim,
                            layer.q_norm, layer.k_norm, eps);
        blade_paged_attention(attention, gathered, queries, keys, values, normed, scale, layer.window);
        blade_linear(layer.output, normed, tokens, queries, x);
        blade_rms_norm(1, x, residual, residual, layer.post_attention_norm, normed, tokens, hidden, eps);
        for (int64_t first = 0; first < tokens; first += MLP_TOKENS) {
            const int64_t some = std::min(MLP_TOKENS, tokens - first);
            blade_linear(layer.gate_up, normed + first * hidden, some, hidden, projected);
            blade_silu_and_mul(1, projected, gathered, some, inner);
            blade_linear(layer.down, gathered, some, inner, x + first * hidden);
        }
    }
}
