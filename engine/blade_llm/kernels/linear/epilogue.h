// From fp32 sums to a row of outputs: scale, bias, rounding to bf16.
#pragma once

#include "layout.h"

namespace blade {

struct Epilogue {
    __m512 scale[2], bias[2];
    __mmask32 mask;  // outputs that exist

    BLADE_AVX512_BF16 Epilogue(const Weight& weight, int64_t panel) {
        for (int tile = 0; tile < 2; ++tile) {
            int64_t at = panel * PANEL + tile * 16;
            scale[tile] = weight.scales_outputs() ? _mm512_loadu_ps(weight.scales + at) : _mm512_set1_ps(1.0f);
            bias[tile] = weight.bias ? _mm512_loadu_ps(weight.bias + at) : _mm512_setzero_ps();
        }
        int64_t left = weight.outputs - panel * PANEL;
        mask = left >= PANEL ? 0xffffffffu : (1u << left) - 1;
    }

    BLADE_AVX512_BF16 inline void store(bf16* to, __m512 first, __m512 second) const {
        first = _mm512_fmadd_ps(first, scale[0], bias[0]);
        second = _mm512_fmadd_ps(second, scale[1], bias[1]);
        _mm512_mask_storeu_epi16(to, mask, (__m512i)_mm512_cvtne2ps_pbh(second, first));
    }
};

}  // namespace blade
