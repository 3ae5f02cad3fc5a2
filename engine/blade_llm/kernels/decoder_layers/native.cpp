// Whole decoder layers, and whole drafts, as Python calls them.
#include "draft.h"
#include "layers.h"

// Returns 0, or why ranks cannot go on.
BLADE_EXPORT int blade_decoder_layers(const blade::layers::Decoder* decoder, const blade::layers::Step* step,
                                      int64_t layers) {
    return blade::layers::decoder_layers(decoder, step, layers);
}

BLADE_EXPORT int64_t blade_draft_tokens(const blade::layers::DraftModel* model, const blade::layers::Draft* draft) {
    return blade::layers::draft_tokens(*model, *draft);
}
