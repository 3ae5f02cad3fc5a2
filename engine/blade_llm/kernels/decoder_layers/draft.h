// The tokens that a draft model proposes, one after the other in one call: what a step samples is the next one's input.
#pragma once

#include <cmath>
#include <cstring>

#include "layers.h"
#include "simd.h"

namespace blade::layers {

// As _Model in draft.py.
struct DraftModel {
    const Decoder* decoder;
    int64_t layers;
    const bf16* embedding;
    const bf16 *norm, *norm_bias;  // after the last layer
    const Weight* head;
    int64_t outputs, vocabulary;  // of the head, and how many of them may be sampled
    const float *cosines, *sines;
    int64_t angles;  // of a position
};

// As _Draft in draft.py. Sequences that draft in a step are those of the step before without some of the last.
struct Draft {
    int64_t steps;
    const int64_t* counts;  // sequences that draft in each step
    const int64_t* slots;
    int64_t* positions;  // of the token that is sampled next, which is the length of what is computed before
    int32_t* tokens;     // by slot and position
    int64_t tokens_stride;
    const int32_t* block_table;
    int64_t block_table_stride, block_size;
    const attention::Step* const* attention;  // of each step's forward pass; the first has none
    bf16* const* caches;
    const float *temperatures, *top_p;  // a temperature of 0: the likeliest token
    const int64_t *top_k, *keys;
    int64_t random, filtered;  // whether any sequence samples at random, and with top-k or top-p
    bf16* hidden;              // of each sequence's last token
    // Scratch for all sequences; the names are those of Step
    bf16 *x, *residual, *normed, *projected, *gathered;
    char* mixture;
    int64_t* slot_mapping;
    float *cosines, *sines;
    bf16* logits;
    float *scaled, *thresholds;
    int64_t *likeliest, *sampled;
};

struct Scaling {
    const bf16* logits;
    int64_t stride, vocabulary;
    const float* temperatures;
    float* out;
};

template <int W>
BLADE_INLINE void scale_kernel(const Scaling& scaling, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        const bf16* x = scaling.logits + row * scaling.stride;
        float* out = scaling.out + row * scaling.vocabulary;
        const float temperature = scaling.temperatures[row] > 0 ? scaling.temperatures[row] : 1.0f;
        int64_t i = 0;
        for (; i + W <= scaling.vocabulary; i += W) {
            const Float<W> value = load<W>(x + i) / temperature;
            memcpy(out + i, &value, sizeof value);
        }
        for (; i < scaling.vocabulary; i++) out[i] = to_float(x[i]) / temperature;
    }
}

BLADE_FOR_EACH_ISA(scale, scale_kernel, Scaling)

// The likeliest tokens, and those that are sampled, of the first `count` sequences; how many have no numbers as logits.
inline int64_t sample(const DraftModel& model, const Draft& draft, int64_t count) {
    blade_linear(model.head, draft.hidden, count, model.decoder->hidden, draft.logits);
    blade_argmax(1, draft.logits, model.outputs, count, model.vocabulary, nullptr, nullptr, draft.likeliest);
    if (draft.random) {
        const Scaling scaling{draft.logits, model.outputs, model.vocabulary, draft.temperatures, draft.scaled};
        split(count, count * model.vocabulary, [&](int64_t begin, int64_t end) { scale(scaling, begin, end); });
        std::fill_n(draft.thresholds, count, -INFINITY);
        if (draft.filtered)
            blade_top_k_top_p(draft.scaled, draft.top_k, draft.top_p, count, model.vocabulary, draft.thresholds);
        blade_gumbel_argmax(draft.scaled, draft.thresholds, draft.keys, draft.positions, count, model.vocabulary,
                            draft.sampled);
    }
    int64_t invalid = 0;
    for (int64_t i = 0; i < count; i++) {
        const float best = to_float(draft.logits[i * model.outputs + draft.likeliest[i]]);
        invalid += best != best;
        // Where two tokens are too close to tell which the noise favours, the likeliest is as good a guess.
        const bool sampled = draft.temperatures[i] > 0 && draft.sampled[i] >= 0;
        const int64_t token = sampled ? draft.sampled[i] : draft.likeliest[i];
        draft.tokens[draft.slots[i] * draft.tokens_stride + draft.positions[i]] = static_cast<int32_t>(token);
    }
    return invalid;
}

// Hidden states of the tokens that were just sampled, of the first `count` sequences.
inline void forward(const DraftModel& model, const Draft& draft, const attention::Step* attention, int64_t count) {
    const int64_t hidden = model.decoder->hidden;
    for (int64_t i = 0; i < count; i++) {
        const int64_t slot = draft.slots[i], position = draft.positions[i]++;
        const int32_t token = draft.tokens[slot * draft.tokens_stride + position];
        memcpy(draft.residual + i * hidden, model.embedding + token * hidden, hidden * sizeof(bf16));
        memcpy(draft.cosines + i * model.angles, model.cosines + position * model.angles, model.angles * sizeof(float));
        memcpy(draft.sines + i * model.angles, model.sines + position * model.angles, model.angles * sizeof(float));
        const int32_t block = draft.block_table[slot * draft.block_table_stride + position / draft.block_size];
        draft.slot_mapping[i] = block * draft.block_size + position % draft.block_size;
    }
    const Step step{count, draft.cosines, draft.sines, draft.slot_mapping, attention, draft.caches, draft.x,
                    draft.residual, draft.normed, draft.projected, draft.gathered, draft.mixture, nullptr, nullptr};
    decoder_layers(model.decoder, &step, model.layers);
    norm(*model.decoder, draft.x, draft.residual, draft.residual, model.norm, model.norm_bias, draft.hidden, count);
}

// Returns how many logits of sequences were no numbers.
inline int64_t draft_tokens(const DraftModel& model, const Draft& draft) {
    int64_t invalid = 0;
    for (int64_t step = 0; step < draft.steps; step++) {
        if (step) forward(model, draft, draft.attention[step], draft.counts[step]);
        invalid += sample(model, draft, draft.counts[step]);
    }
    return invalid;
}

}  // namespace blade::layers
