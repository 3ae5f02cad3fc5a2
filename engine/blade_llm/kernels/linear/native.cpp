// Linear layers on weights packed by layout.h: which kernel for how many rows, and the panels divided among threads.
#include <algorithm>

#include <omp.h>

#include "layout.h"
#include "operators.h"
#include "pack.h"
#include "pack_affine.h"
#include "rounded.h"
#include "with_amx.h"
#include "with_amx_bytes.h"
#include "with_amx_int8.h"
#include "with_avx2.h"
#include "with_avx2_bytes.h"
#include "with_avx2_integers.h"
#include "with_bytes.h"
#include "with_dot.h"
#include "with_dot_float8.h"
#include "with_dot_unpacked.h"
#include "with_vnni.h"

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
    const bool amx = isa() == Isa::amx;
    if constexpr (KIND != Kind::bf16) {
        const int64_t most = amx ? INTEGER_ROWS_AMX : always_integers ? job.rows : INTEGER_ROWS_AVX512;
        if (!job.weight->fixed_order && job.weight->inputs <= INTEGER_INPUTS) {
            if (job.rows <= most) return multiply_vnni<KIND>;
            if (KIND == Kind::int8 && amx && job.rows <= INT8_AMX_ROWS) return multiply_int8_amx;
        }
    }
    if (amx) return multiply_amx<KIND>;
    if constexpr (KIND == Kind::bf16) return multiply_bf16_dot;
    else return multiply_unpacked_dot<KIND>;
}

Worker choose_bytes() {
    if (isa() < Isa::avx512_bf16) return multiply_bytes_avx2;
    return isa() == Isa::amx ? multiply_bytes_amx : multiply_bytes;
}

Worker choose_float8() {
    if (isa() < Isa::avx512_bf16) return multiply_avx2<Kind::float8>;
    return isa() == Isa::amx ? multiply_amx<Kind::float8> : multiply_float8;
}

Worker choose(const Job& job) {
    switch (job.weight->kind) {
        case Kind::w8a8: return choose_bytes();
        case Kind::float8: return choose_float8();
        case Kind::int8: return choose<Kind::int8>(job);
        case Kind::int4: return choose<Kind::int4>(job);
        case Kind::affine4: return choose<Kind::affine4>(job);
        case Kind::affine8: return choose<Kind::affine8>(job);
        default: return choose<Kind::bf16>(job);
    }
}

thread_local Buffers buffers;

// A row of inputs in the weight's order, filled up with zeros to whole steps.
void arrange_inputs(const Weight& weight, const bf16* from, bf16* to) {
    if (weight.order)
        for (int64_t i = 0; i < weight.inputs; ++i) to[i] = from[weight.order[i]];
    else
        memcpy(to, from, weight.inputs * sizeof(bf16));
    memset(to + weight.inputs, 0, (weight.steps() * STEP - weight.inputs) * sizeof(bf16));
}

// The inputs as kernels take them: copied where a weight has an order of its own or no whole steps, once for all panels.
// ``weight_of`` a row; all weights have the same inputs. ``x_stride`` follows.
template <class WeightOf>
const bf16* arranged_inputs(
    const WeightOf& weight_of, bool has_order, const bf16* x, int64_t rows, int64_t& x_stride) {
    constexpr int64_t few = 1 << 16;  // inputs: copied before a second thread is awake
    const Weight& any = weight_of(0);
    const int64_t padded = any.steps() * STEP, stride = x_stride;
    if (padded == any.inputs && !has_order) return x;
    bf16* copy = buffers.inputs.get(rows * padded * sizeof(bf16));
#pragma omp parallel for schedule(static) if (rows * padded > few)
    for (int64_t row = 0; row < rows; ++row) arrange_inputs(weight_of(row), x + row * stride, copy + row * padded);
    x_stride = padded;
    return copy;
}

// A small layer is done before a second thread is awake.
bool worth_sharing(int64_t panels, int64_t bytes, int64_t rows) {
    return panels > 1 && bytes * std::min<int64_t>(rows, 16) > (1 << 18);
}

// Rows that take as long as one: the weight comes slower than it is multiplied with them.
constexpr int64_t FREE_ROWS = 4;

}  // namespace

// Whether this CPU can do it at all.
BLADE_EXPORT int blade_linear_supported() { return isa() >= Isa::avx2; }

// Bytes; returns the distance before.
BLADE_EXPORT int64_t blade_linear_set_prefetch(int kind, int64_t distance) {
    return prefetch_distances[kind].exchange(distance);
}

// Whether quantised weights are multiplied as integers whatever the number of rows, with AVX-512; returns what it was.
BLADE_EXPORT int blade_linear_set_always_integers(int always) { return always_integers.exchange(always); }

// Of 32 outputs.
BLADE_EXPORT int64_t blade_linear_panel_bytes(const Weight* weight) { return weight->panel_bytes(); }

// ``source``: [outputs, inputs] bf16, contiguous.
BLADE_EXPORT void blade_linear_pack(const Weight* weight, const bf16* source) {
    const int64_t panels = weight->panels();
    const auto pack = isa() >= Isa::avx512_bf16 ? pack_panel_avx512 : pack_panel_avx2;
#pragma omp parallel for schedule(static)
    for (int64_t panel = 0; panel < panels; ++panel) pack(*weight, source, panel);
}

// The same of a weight that is quantised already.
BLADE_EXPORT void blade_linear_pack_integers(const Weight* weight, const Integers* source) {
    const int64_t panels = weight->panels();
#pragma omp parallel for schedule(static)
    for (int64_t panel = 0; panel < panels; ++panel) pack_affine_panel(*weight, *source, panel);
}

// ``x``: [rows, inputs] bf16, rows ``x_stride`` apart; ``y``: [rows, outputs] bf16, contiguous.
BLADE_EXPORT void blade_linear(const Weight* weight, const bf16* x, int64_t rows, int64_t x_stride, bf16* y) {
    if (rows == 0) return;
    const int64_t panels = weight->panels();
    x = arranged_inputs([=](int64_t) -> const Weight& { return *weight; }, weight->order, x, rows, x_stride);
    Job job{weight, x, rows, x_stride, y, weight->outputs};
    if (weight->rounding != Rounding::none) job = round_inputs(job, buffers);
    const Worker worker = choose(job);
    const bool share = worth_sharing(panels, panels * weight->panel_bytes(), rows);
#pragma omp parallel if (share)
    {
        const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        const int64_t first = panels * thread / threads, last = panels * (thread + 1) / threads;
        if (first < last) worker(job, first, last, buffers);
    }
}

// Several weights of one shape, each for its own rows: those of group g are [starts[g], starts[g + 1]). ``x``: [rows,
// inputs] bf16, rows ``x_stride`` apart; ``y``: [rows, outputs] bf16, contiguous. Weights without rows are not touched.
// Threads share the panels of all groups together, by what these cost.
BLADE_EXPORT void blade_grouped_linear(
    const Weight* const* weights, const int32_t* starts, int64_t groups, const bf16* x, int64_t x_stride, bf16* y) {
    const int64_t rows = starts[groups];
    if (rows == 0) return;
    const Weight& shape = *weights[0];
    const int64_t panels = shape.panels();
    const bool has_order = std::any_of(weights, weights + groups, [](const Weight* each) { return each->order; });
    const auto weight_of = [=](int64_t row) -> const Weight& {
        return *weights[std::upper_bound(starts + 1, starts + groups, row) - starts - 1];
    };
    x = arranged_inputs(weight_of, has_order, x, rows, x_stride);
    const auto panel_cost = [&](int64_t group) {
        const int64_t count = starts[group + 1] - starts[group];
        return count ? std::max(count, FREE_ROWS) : 0;
    };
    int64_t total = 0;
    for (int64_t group = 0; group < groups; ++group) total += panels * panel_cost(group);
    const bool share = worth_sharing(panels, total / FREE_ROWS * shape.panel_bytes(), 1);
#pragma omp parallel if (share)
    {
        const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        const int64_t begin = total * thread / threads, end = total * (thread + 1) / threads;
        int64_t before = 0;
        for (int64_t group = 0; group < groups && before < end; ++group) {
            const int64_t cost = panel_cost(group);
            if (cost == 0) continue;
            // The panels of which the beginning lies in this thread's share.
            const auto place = [&](int64_t at) { return std::clamp<int64_t>((at - before + cost - 1) / cost, 0, panels); };
            const int64_t first = place(begin), last = place(end);
            before += panels * cost;
            if (first >= last) continue;
            const int64_t row = starts[group];
            const Job job{weights[group], x + row * x_stride, starts[group + 1] - row, x_stride, y + row * shape.outputs,
                          shape.outputs};
            const bool rounds = job.weight->rounding != Rounding::none;
            choose(job)(rounds ? round_inputs(job, buffers) : job, first, last, buffers);
        }
    }
}
