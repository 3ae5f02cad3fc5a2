// Linear layers on weights packed by layout.h: which kernel for how many rows, and the panels divided among threads.
#include <algorithm>

#include <omp.h>

#include "layout.h"
#include "operators.h"
#include "pack.h"
#include "with_amx.h"
#include "with_avx2.h"
#include "with_avx2_integers.h"
#include "with_dot.h"
#include "with_dot_int4.h"
#include "with_dot_unpacked.h"
#include "with_int8.h"

namespace {

using namespace blade;

using Worker = void (*)(const Job&, int64_t first, int64_t last, Buffers& buffers);

template <Kind KIND>
Worker choose_avx2(const Job& job) {
    if constexpr (KIND != Kind::bf16)
        if (!job.weight->fixed_order && job.rows <= INTEGER_ROWS) return multiply_integers_avx2<KIND>;
    return multiply_avx2<KIND>;
}

template <Kind KIND>
Worker choose(const Job& job) {
    if (isa() < Isa::avx512_bf16) return choose_avx2<KIND>(job);
    const bool amx = isa() == Isa::amx, any_order = !job.weight->fixed_order;
    if constexpr (KIND == Kind::int8) {
        const bool integers = any_order && job.rows <= INT8_ROWS && job.weight->inputs <= INT8_INPUTS;
        if (integers) return amx && job.rows > INT8_DOT_ROWS ? multiply_int8_amx : multiply_int8_dot;
    } else if constexpr (KIND == Kind::int4) {
        if (any_order && job.rows <= (amx ? INT4_ROWS_AMX : INT4_ROWS)) return multiply_int4_dot;
    }
    if (amx) return multiply_amx<KIND>;
    if constexpr (KIND == Kind::bf16) return multiply_bf16_dot;
    else return multiply_unpacked_dot<KIND>;
}

Worker choose(const Job& job) {
    switch (job.weight->kind) {
        case Kind::int8: return choose<Kind::int8>(job);
        case Kind::int4: return choose<Kind::int4>(job);
        default: return choose<Kind::bf16>(job);
    }
}

thread_local Buffers buffers;

}  // namespace

// Whether this CPU can do it at all.
BLADE_EXPORT int blade_linear_supported() { return isa() >= Isa::avx2; }

// Bytes; returns the distance before.
BLADE_EXPORT int64_t blade_linear_set_prefetch(int64_t distance) { return prefetch_distance.exchange(distance); }

BLADE_EXPORT int64_t blade_linear_record_bytes(int kind) { return record_bytes(static_cast<Kind>(kind)); }

// ``source``: [outputs, inputs] bf16, contiguous.
BLADE_EXPORT void blade_linear_pack(const Weight* weight, const bf16* source) {
    const int64_t panels = weight->panels();
    const auto pack = isa() >= Isa::avx512_bf16 ? pack_panel_avx512 : pack_panel_avx2;
#pragma omp parallel for schedule(static)
    for (int64_t panel = 0; panel < panels; ++panel) pack(*weight, source, panel);
}

// ``x``: [rows, inputs] bf16, rows ``x_stride`` apart; ``y``: [rows, outputs] bf16, contiguous.
BLADE_EXPORT void blade_linear(const Weight* weight, const bf16* x, int64_t rows, int64_t x_stride, bf16* y) {
    if (rows == 0) return;
    const int64_t panels = weight->panels(), padded = weight->steps() * STEP;
    if (padded != weight->inputs) {
        bf16* copy = buffers.inputs.get(rows * padded * sizeof(bf16));
        for (int64_t row = 0; row < rows; ++row) {
            memcpy(copy + row * padded, x + row * x_stride, weight->inputs * sizeof(bf16));
            memset(copy + row * padded + weight->inputs, 0, (padded - weight->inputs) * sizeof(bf16));
        }
        x = copy;
        x_stride = padded;
    }
    const Job job{weight, x, rows, x_stride, y, weight->outputs};
    const Worker worker = choose(job);
    // A small layer is done before a second thread is awake.
    const bool share = panels > 1 && panels * weight->panel_bytes() * std::min<int64_t>(rows, 16) > (1 << 18);
#pragma omp parallel if (share)
    {
        const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        const int64_t first = panels * thread / threads, last = panels * (thread + 1) / threads;
        if (first < last) worker(job, first, last, buffers);
    }
}
