// Paged attention of a ragged batch: how its work is split among threads. What a unit of it computes is in attend.h,
// how, in portable.h, tiles.h and decode.h.
//
// A sequence with few rows (a decode) is split along its keys at fixed positions, so that one long sequence keeps all
// threads busy and its result never depends on threads or on the rest of the batch; its parts are merged in order. One
// with many rows (a prefill) is split along its queries, later ones first: they take longest. So are all where keys are
// in no blocks: what comes out does not depend on how many queries are computed at once.
#include <atomic>
#include <type_traits>
#include <vector>

#include <omp.h>

#include "operators.h"
#include "packed.h"
#include "portable.h"
#include "tiles.h"

namespace blade::attention {
namespace {

constexpr int64_t CHUNK = 512;        // keys of a part; a multiple of every block of keys
constexpr int64_t DECODE_ROWS = 64;   // a sequence of at most so many rows per key head is split along its keys
constexpr int64_t WORTH_THREADS = 1 << 15;  // scores from which further threads pay
constexpr int64_t LEAST_ROWS = 32;    // rows below which none is split along its queries to keep threads busy

// Parts of one sequence and key head: units first, first + stride, ...
struct Merge {
    int64_t first, count, stride;
};

template <class Kernel>
void run(const Call& call) {
    const Step& step = *call.step;
    const int64_t share = step.heads / step.kv_heads, lanes = Kernel::LANES;
    static thread_local std::vector<Unit> units;
    static thread_local std::vector<Merge> merges;
    static thread_local std::vector<float> partials;
    units.clear(), merges.clear();
    int64_t total = 0, stored = 0;
    const int64_t state = (call.form->v_dim + 2) * lanes;
    for (int64_t i = 0; i < step.sequences; i++) {
        const int64_t count = step.query_starts[i + 1] - step.query_starts[i], end = step.seq_lens[i];
        const int64_t rows = count * share, tiles = (rows + lanes - 1) / lanes;
        const bool decode = step.block_table && (rows <= DECODE_ROWS || (count == 1 && rows <= MAX_ROWS));
        int64_t height = decode ? rows : share <= MAX_ROWS ? MAX_ROWS / share * share : MAX_ROWS;
        if (!step.block_table) {
            const int64_t wanted = omp_get_max_threads(), heads = step.sequences * step.kv_heads;
            while (height > LEAST_ROWS && heads * ((rows + height - 1) / height) < wanted) height /= 2;
        }
        for (int64_t first = (rows - 1) / height * height; first >= 0; first -= height) {
            Unit unit{i, 0, first, std::min(height, rows - first), 0, 0, nullptr};
            const int64_t last = call.form->bidirectional ? end : end - count + (first + unit.rows - 1) / share + 1;
            // Where tokens branch, one further back may have the position of an earlier one.
            const int64_t earliest = step.branches(step.query_starts[i]) ? 0 : first / share;
            const int64_t low = call.first_key(end - count + earliest) / Kernel::KEYS * Kernel::KEYS;
            const int64_t begin = static_cast<int64_t>(units.size());
            int64_t parts = 0;
            // Heads innermost: their keys lie side by side in memory.
            for (int64_t key = low; key < last || !parts; key = unit.key_end, parts++) {
                unit.key_begin = key;
                unit.key_end = decode ? std::min(last, (key / CHUNK + 1) * CHUNK) : last;
                total += (unit.key_end - key) * ((unit.rows + lanes - 1) / lanes) * lanes * step.kv_heads;
                for (unit.kv_head = 0; unit.kv_head < step.kv_heads; unit.kv_head++) units.push_back(unit);
            }
            if (parts == 1) continue;
            stored += parts * step.kv_heads * tiles * state;
            for (int64_t head = 0; head < step.kv_heads; head++) merges.push_back({begin + head, parts, step.kv_heads});
        }
    }
    if (!merges.empty()) {
        if (static_cast<int64_t>(partials.size()) < stored + 16) partials.resize(stored + 16);
        float* next = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(partials.data()) + 63) & ~uintptr_t{63});
        for (const Merge& merge : merges)
            for (int64_t part = 0; part < merge.count; part++) {
                Unit& unit = units[merge.first + part * merge.stride];
                unit.partial = next;
                next += (unit.rows + lanes - 1) / lanes * state;
            }
    }
    const Unit* todo = units.data();
    const Merge* merge = merges.data();
    const int64_t count = static_cast<int64_t>(units.size()), merge_count = static_cast<int64_t>(merges.size());
    auto finish = [&](const Merge& merged) {
        const Unit& unit = todo[merged.first];
        for (int64_t tile = 0; tile < (unit.rows + lanes - 1) / lanes; tile++)
            for (int64_t part = 1; part < merged.count; part++)
                Kernel::merge(unit.partial + tile * state,
                              todo[merged.first + part * merged.stride].partial + tile * state, call.form->v_dim);
        Kernel::finish(call, unit, unit.partial);
    };
    const int threads = static_cast<int>(std::min<int64_t>({omp_get_max_threads(), count, 1 + total / WORTH_THREADS}));
    std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Kernel::start();
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
            if constexpr (std::is_same_v<Kernel, TileKernel<false>>)
                if (is_plain_decode(call, todo[i])) {
                    is_packed_decode(call) ? attend_packed(call, todo[i]) : attend_decode(call, todo[i]);
                    continue;
                }
            attend<Kernel>(call, todo[i]);
        }
        Kernel::stop();
        if (merge_count) {
#pragma omp barrier
#pragma omp for schedule(static)
            for (int64_t i = 0; i < merge_count; i++) finish(merge[i]);
        }
    }
}

template <class T>
void run_portable(const Call& call) {
    if (isa() >= Isa::avx512) return run<Avx512Kernel<T>>(call);
    if (isa() >= Isa::avx2) return run<Avx2Kernel<T>>(call);
    run<BaselineKernel<T>>(call);
}

void compute(const Call& call) {
    const Step& step = *call.step;
    if (!step.is_bf16) return run_portable<float>(call);
    if (step.head_dim % 16 || call.form->v_dim % 16 || isa() < Isa::avx512_bf16) return run_portable<bf16>(call);
    if (isa() >= Isa::amx) return run<TileKernel<true>>(call);
    run<TileKernel<false>>(call);
}

}  // namespace
}  // namespace blade::attention

// q: [tokens, heads, head_dim], q_stride elements between tokens; out: [tokens, heads, v_dim], contiguous.
BLADE_EXPORT void blade_paged_attention(const blade::attention::Step* step, const void* q, int64_t q_stride,
                                        const void* k, const void* v, void* out,
                                        const blade::attention::Form* form) {
    using namespace blade::attention;
    compute({step, form, q, k, v, out, q_stride, step->heads * form->v_dim});
}

// Every query sees all keys of its sequence. q, out: [sequences * queries, heads, head_dim], `stride` elements between
// rows; they may be the same. k, v: [heads, head_rows, head_dim], `keys` of each sequence one sequence after the other.
BLADE_EXPORT void blade_full_attention(int is_bf16, const void* q, void* out, int64_t stride, const void* k,
                                       const void* v, int64_t head_rows, int64_t sequences, int64_t queries,
                                       int64_t keys, int64_t heads, int64_t head_dim, float scale) {
    using namespace blade::attention;
    static thread_local std::vector<int64_t> numbers;
    numbers.resize(3 * sequences + 1);
    int64_t *first_keys = numbers.data(), *lengths = first_keys + sequences, *starts = lengths + sequences;
    for (int64_t i = 0; i < sequences; i++) first_keys[i] = i * keys, lengths[i] = keys, starts[i] = i * queries;
    starts[sequences] = sequences * queries;
    Step step{};
    step.sequences = sequences, step.rows = first_keys, step.query_starts = starts, step.seq_lens = lengths;
    step.table_stride = head_rows, step.heads = step.kv_heads = heads, step.head_dim = head_dim;
    step.is_bf16 = is_bf16;
    Form form{};
    form.scale = scale, form.bidirectional = 1, form.v_dim = head_dim;
    compute({&step, &form, q, k, v, out, stride, stride});
}

BLADE_EXPORT const blade::CacheRows* blade_kv_rows(const blade::attention::Step* step) { return &step->kv_rows; }
