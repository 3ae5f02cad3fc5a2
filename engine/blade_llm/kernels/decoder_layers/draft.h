// The tokens that a draft model proposes, one after the other in one call: what a step samples is the next one's input.
#pragma once

#include <cmath>
#include <cstring>

#include "layers.h"
#include "simd.h"

namespace blade::layers {

// As _Head in draft.py: what a head that drafts from hidden states has beside its layer. Both norms are the decoder's
// kind; one layer is all that the decoder has.
struct Head {
    const bf16 *embedding_norm, *state_norm;
    const Weight* projection;  // of both into the layer's input; null: they are its attention's, side by side
    const int64_t* tokens;     // of each logit; null: they are in order
    int64_t states_first, passes_normalised, normalised_residual;
};

// As _Model in draft.py.
struct DraftModel {
    const Decoder* decoder;  // without ranks: its layers cannot fail
    int64_t layers;
    const bf16* embedding;
    const bf16 *norm, *norm_bias;  // after the last layer
    const Weight* head;
    int64_t outputs, vocabulary;  // of the head, and how many of them may be sampled
    const float *cosines, *sines;
    int64_t angles;    // of a position
    const Head* joins;  // null: a draft model
};

// As _Draft in draft.py. Sequences that draft in a step are those of the step before without some of the last.
struct Draft {
    int64_t steps;
    const int64_t* counts;  // sequences that draft in each step
    const int64_t* slots;
    int64_t* positions;  // of the token that is sampled next
    int64_t* lengths;    // of what is computed before; the same array where it is the same
    int32_t* tokens;     // by slot and position
    int64_t tokens_stride;
    const int32_t* block_table;
    int64_t block_table_stride, block_size;
    const attention::Step* const* attention;  // of each step's forward pass; the first has none
    void* const* caches;
    const float *temperatures, *top_p;  // a temperature of 0: the likeliest token
    const int64_t *top_k, *keys;
    int64_t random, filtered;  // whether any sequence samples at random, and with top-k or top-p
    bf16* hidden;              // of each sequence's last token; of a head what it goes on from
    // Scratch for all sequences; the names are those of Step
    bf16 *x, *residual, *normed, *projected, *gathered;
    char* mixture;
    bf16* joined;  // of a head: as wide as both, and as its queries
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

// Logits of the tokens that the head has over the temperature, and minus infinity for others.
inline void scatter(const DraftModel& model, const Draft& draft, int64_t count) {
    for (int64_t row = 0; row < count; row++) {
        const bf16* x = draft.logits + row * model.outputs;
        float* out = draft.scaled + row * model.vocabulary;
        const float temperature = draft.temperatures[row] > 0 ? draft.temperatures[row] : 1.0f;
        std::fill_n(out, model.vocabulary, -INFINITY);
        for (int64_t i = 0; i < model.outputs; i++) out[model.joins->tokens[i]] = to_float(x[i]) / temperature;
    }
}

// The likeliest tokens, and those that are sampled, of the first `count` sequences; how many have no numbers as logits.
inline int64_t sample(const DraftModel& model, const Draft& draft, int64_t count) {
    const Head* head = model.joins;
    const int64_t* tokens = head ? head->tokens : nullptr;
    const bf16* last = draft.hidden;
    if (head && !head->passes_normalised) {
        norm(*model.decoder, draft.hidden, nullptr, nullptr, model.norm, nullptr, draft.normed, count);
        last = draft.normed;
    }
    blade_linear(model.head, last, count, model.decoder->hidden, draft.logits);
    blade_argmax(1, draft.logits, model.outputs, count, tokens ? model.outputs : model.vocabulary, nullptr, nullptr,
                 draft.likeliest);
    if (draft.random && tokens) scatter(model, draft, count);
    if (draft.random && !tokens) {
        const Scaling scaling{draft.logits, model.outputs, model.vocabulary, draft.temperatures, draft.scaled};
        split(count, count * model.vocabulary, [&](int64_t begin, int64_t end) { scale(scaling, begin, end); });
    }
    if (draft.random) {
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
        const int64_t likeliest = tokens ? tokens[draft.likeliest[i]] : draft.likeliest[i];
        const int64_t token = sampled ? draft.sampled[i] : likeliest;
        draft.tokens[draft.slots[i] * draft.tokens_stride + draft.positions[i]] = static_cast<int32_t>(token);
    }
    return invalid;
}

// What a head's layer adds to `residual`: from the embeddings there of the tokens that were just sampled, and the states
// that it goes on from.
inline void head_layer(const DraftModel& model, const Draft& draft, Step step) {
    const Head& head = *model.joins;
    const int64_t hidden = model.decoder->hidden, count = step.tokens, bytes = hidden * sizeof(bf16);
    const bf16* first = model.joins->projection ? head.embedding_norm : model.decoder->layers[0].input_norm;
    norm(*model.decoder, draft.residual, nullptr, nullptr, first, nullptr, draft.x, count);
    norm(*model.decoder, draft.hidden, nullptr, nullptr, head.state_norm, nullptr, draft.normed, count);
    for (int64_t i = 0; i < count; i++) {
        bf16* both = draft.joined + 2 * i * hidden;
        memcpy(both + (head.states_first ? hidden : 0), draft.x + i * hidden, bytes);
        memcpy(both + (head.states_first ? 0 : hidden), draft.normed + i * hidden, bytes);
    }
    if (head.projection) {
        blade_linear(head.projection, draft.joined, count, 2 * hidden, draft.residual);
        decoder_layers(model.decoder, &step, 1);
        return;
    }
    memcpy(draft.residual, head.normalised_residual ? draft.normed : draft.hidden, count * bytes);
    step.normed = draft.joined;
    attend_and_mlp(model.decoder, &step, 0, 2 * hidden);
}

// Hidden states of the tokens that were just sampled, of the first `count` sequences.
inline void forward(const DraftModel& model, const Draft& draft, const attention::Step* attention, int64_t count) {
    const int64_t hidden = model.decoder->hidden;
    for (int64_t i = 0; i < count; i++) {
        const int64_t slot = draft.slots[i];
        const int32_t token = draft.tokens[slot * draft.tokens_stride + draft.positions[i]++];
        if (draft.lengths != draft.positions) draft.lengths[i]++;
        const int64_t position = draft.lengths[i] - 1;
        memcpy(draft.residual + i * hidden, model.embedding + token * hidden, hidden * sizeof(bf16));
        memcpy(draft.cosines + i * model.angles, model.cosines + position * model.angles, model.angles * sizeof(float));
        memcpy(draft.sines + i * model.angles, model.sines + position * model.angles, model.angles * sizeof(float));
        const int32_t block = draft.block_table[slot * draft.block_table_stride + position / draft.block_size];
        draft.slot_mapping[i] = block * draft.block_size + position % draft.block_size;
    }
    const Step step{count, draft.cosines, draft.sines, draft.slot_mapping, attention, draft.caches, draft.x,
                    draft.residual, draft.normed, draft.projected, draft.gathered, draft.mixture, nullptr, nullptr};
    if (model.joins)
        head_layer(model, draft, step);
    else
        decoder_layers(model.decoder, &step, model.layers);
    norm(*model.decoder, draft.x, draft.residual, draft.residual, model.norm, model.norm_bias, draft.hidden, count);
    if (model.joins && !model.joins->passes_normalised)
        memcpy(draft.hidden, draft.residual, count * hidden * sizeof(bf16));
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
