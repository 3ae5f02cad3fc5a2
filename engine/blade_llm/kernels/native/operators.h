// The operators that others call, as their native.cpp defines them.
#pragma once

#include "bf16.h"

namespace blade {
struct Weight;   // linear/layout.h
struct Mixture;  // experts/native.cpp
struct CacheRows;  // kv_rows.h
namespace lora {
struct Factors;  // lora/native.cpp
struct Batch;
}  // namespace lora
namespace collectives {
struct Group;  // collectives/group.h
}
namespace attention {
struct Step;  // paged_attention/attend.h
struct Form;
}
}  // namespace blade

BLADE_EXPORT void blade_linear(const blade::Weight* weight, const blade::bf16* x, int64_t rows, int64_t x_stride,
                               blade::bf16* y);

BLADE_EXPORT void blade_grouped_linear(const blade::Weight* const* weights, const int32_t* starts, int64_t groups,
                                       const blade::bf16* x, int64_t x_stride, blade::bf16* y);

BLADE_EXPORT void blade_rms_norm(int is_bf16, const void* x, const void* residual, void* total, const void* weight,
                                 void* out, int64_t rows, int64_t hidden, float eps, int unit_offset);

BLADE_EXPORT void blade_rope_write_kv(int is_bf16, const void* qkv, const float* cosines, const float* sines,
                                      const int64_t* slots, void* k_cache, void* v_cache, void* q_out, int64_t tokens,
                                      int64_t heads, int64_t kv_heads, int64_t head_dim, const void* q_norm,
                                      const void* k_norm, float eps, int unit_offset, const blade::CacheRows* rows);

BLADE_EXPORT void blade_paged_attention(const blade::attention::Step* step, const void* q, int64_t q_stride,
                                        const void* k, const void* v, void* out,
                                        const blade::attention::Form* form);

// How the rows of the caches are packed that a step attends over.
BLADE_EXPORT const blade::CacheRows* blade_kv_rows(const blade::attention::Step* step);

BLADE_EXPORT void blade_lora(const blade::lora::Factors* const* table, const blade::lora::Batch* batch, int is_bf16,
                             const void* x, int64_t inputs, int64_t x_stride, void* y, int64_t outputs);

BLADE_EXPORT void blade_layer_norm(int is_bf16, const void* x, const void* residual, void* total, const void* weight,
                                   const void* bias, void* out, int64_t rows, int64_t hidden, float eps);

// Formulas are numbered in activate/kinds.py.
BLADE_EXPORT void blade_activate(int is_bf16, int formula, int gated, const void* x, void* out, int64_t rows,
                                 int64_t inner);

BLADE_EXPORT void blade_moe_route(int is_bf16, const void* logits, const float* bias, int64_t tokens, int64_t experts,
                                  int64_t top_k, int sigmoid, int renormalize, float scale, int64_t groups,
                                  int64_t top_groups, int32_t* ids, float* weights);

BLADE_EXPORT void blade_mixture(const blade::Mixture* mixture, const blade::bf16* x, int64_t tokens, char* scratch,
                                blade::bf16* out);

BLADE_EXPORT void blade_argmax(int is_bf16, const void* values, int64_t stride, int64_t rows, int64_t length,
                               const int64_t* mask_index, const uint32_t* mask_words, int64_t* out);

BLADE_EXPORT int64_t blade_gumbel_argmax(const float* logits, const float* thresholds, const int64_t* keys,
                                         const int64_t* positions, int64_t rows, int64_t vocabulary, int64_t* out);

BLADE_EXPORT void blade_top_k_top_p(const float* logits, const int64_t* top_k, const float* top_p, int64_t rows,
                                    int64_t vocabulary, float* thresholds);

// In place, over the ranks of the group; the codes of `dtype` are DTYPES in collectives/native.py. Returns 0, or why the
// ranks cannot go on, of which blade_group_message knows more.
BLADE_EXPORT int blade_group_all_reduce(blade::collectives::Group* group, int dtype, void* data, int64_t count);
