// The part of attention that is the same on every CPU: which queries look at which keys, block by block of keys.
//
// Query heads that share a key head, for one or more tokens, are the *rows* of a unit of work; a tile is as many rows
// as a vector has lanes, so scores are [keys, rows] and the softmax over keys (online: Milakov & Gimelshein, arXiv
// 1805.02867) needs no operation across lanes. Kernels (portable.h, bf16.h) say how a block of keys is computed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "bf16.h"
#include "kv_rows.h"

namespace blade::attention {

constexpr float LOG2_E = 1.44269504f;

// A step's shape; the same fields as `Prepared` in native.py.
struct Step {
    int64_t sequences;
    const int64_t* rows;          // [sequences] of the block table; where there is none, of each one's first key
    const int64_t* query_starts;  // [sequences + 1]
    const int64_t* seq_lens;      // [sequences]
    const int32_t* block_table;   // null: keys and values are [kv_heads, table_stride, head_dim], in no blocks
    int64_t table_stride, block_size, heads, kv_heads, head_dim, is_bf16;
    int64_t fixed_order;  // a token's result does not depend on how many tokens of its sequence are computed with it
    const int64_t* tree;  // [tokens][3], RaggedBatch.tree in batch.py; null: no token branches
    CacheRows kv_rows;    // how the caches' rows are packed, both head_dim wide; or not

    // Of the sequence whose first new token is `token`: null where its tokens do not branch.
    const int64_t* branches(int64_t token) const { return tree && tree[3 * token] != -1 ? tree + 3 * token : nullptr; }
};

// What one layer's attention is; the same fields as `_Form` in native.py. Zero or null: it has none.
struct Form {
    float scale, softcap;
    int64_t window, chunk, bidirectional;
    const float *slopes, *sinks;             // [heads]
    int64_t v_dim, v_slot_size, v_head_size;  // a value's elements, and those between slots and between heads
};

// One layer's attention in a step.
struct Call {
    const Step* step;
    const Form* form;
    const void *q, *k, *v;
    void* out;
    int64_t q_stride, out_stride;  // elements between tokens

    // Bytes of a row of keys, and of one of values; `element`: of a number that is not packed.
    int64_t k_bytes(int64_t element) const {
        return step->kv_rows.packed() ? step->kv_rows.keys.bytes : step->head_dim * element;
    }
    int64_t v_bytes(int64_t element) const {
        return step->kv_rows.packed() ? step->kv_rows.values.bytes : form->v_dim * element;
    }

    // The softmax is computed with powers of two. Where scores are adjusted, that includes the scale.
    bool adjusted() const { return form->softcap != 0 || form->slopes; }
    float scale() const { return adjusted() ? 1.0f : form->scale * LOG2_E; }

    // The first key that a query at `position` sees; never decreases with it.
    int64_t first_key(int64_t position) const {
        const int64_t low = form->window ? std::max<int64_t>(0, position + 1 - form->window) : 0;
        return form->chunk ? std::max(low, position / form->chunk * form->chunk) : low;
    }
};

// What one thread does at a time: rows of one sequence and key head against a range of keys.
struct Unit {
    int64_t sequence, kv_head, first_row, rows, key_begin, key_end;
    float* partial;  // where maxima, sums and outputs go when other units have further keys, else null
};

constexpr int MAX_KEYS = 64;    // most keys of a block
constexpr int MAX_ROWS = 256;   // most rows of a unit
constexpr int MAX_LANES = 16;
constexpr float NEVER = -1e30f;  // below every score, and finite so that differences are never NaN
constexpr float TINY = 1e-30f;   // below every sum of weights; what an empty sequence's is taken for

struct KeyBlock {
    int64_t first;
    int count;                                          // keys of the unit in it
    const void *k[MAX_KEYS], *v[MAX_KEYS];              // their rows; zeros beyond count
    int64_t k_stride;                                   // bytes between the rows of 16 keys, or 0: no such pattern
};

// Rows of a tile: each sees the keys [low, high).
struct Limits {
    int32_t low[MAX_LANES], high[MAX_LANES];
    float slopes[MAX_LANES], positions[MAX_LANES];  // set where attention has slopes, these times log2(e)
    int64_t min_low, max_low, min_high, max_high;
    const int64_t* tree[MAX_LANES];  // of each row's token, where tokens branch
    int64_t branching_from;          // the place of the first that does; beyond all keys where none does
};

// A thread's memory for one unit; every pointer is aligned to 64 bytes.
struct Workspace {
    float *scores, *state;  // [MAX_KEYS, lanes]; [tiles][max, sum, output[v_dim]][lanes]
    void *weights;          // [MAX_KEYS, lanes] of at most two bytes
    void *queries, *keys, *values, *zeros;
    void *unpacked_keys, *unpacked_values;  // [MAX_KEYS, head_dim], of a block whose rows are packed
    Limits* limits;
    const KeyBlock* next;  // block to load from memory meanwhile, or null

    static Workspace of_thread(int64_t key_dim, int64_t value_dim) {
        struct Owner {
            char* memory = nullptr;
            size_t size = 0;
            ~Owner() { std::free(memory); }
        };
        thread_local Owner owner;
        const int64_t head_dim = std::max(key_dim, value_dim);
        int64_t tiles_floats = MAX_ROWS * (head_dim + 2) * 4;  // MAX_ROWS is a multiple of every tile
        int64_t block_bytes = MAX_KEYS * (head_dim + 16) * 4;
        // Tiles of four lanes are most: 64 of them.
        int64_t sizes[] = {MAX_KEYS * MAX_LANES * 4, tiles_floats, MAX_KEYS * MAX_LANES * 2,
                           MAX_ROWS * (head_dim + 32) * 4, block_bytes, block_bytes, head_dim * 4 + 256,
                           int64_t(sizeof(Limits)) * (MAX_ROWS / 4), block_bytes, block_bytes};
        size_t total = 0;
        for (int64_t& size : sizes) total += size = (size + 63) / 64 * 64;
        if (owner.size < total) {
            std::free(owner.memory);
            owner.memory = static_cast<char*>(std::aligned_alloc(64, total));
            owner.size = owner.memory ? total : 0;
            if (!owner.memory) std::abort();
        }
        char* parts[10];
        char* next = owner.memory;
        for (int i = 0; i < 10; i++) parts[i] = next, next += sizes[i];
        memset(parts[6], 0, sizes[6]);
        return {reinterpret_cast<float*>(parts[0]), reinterpret_cast<float*>(parts[1]), parts[2], parts[3], parts[4],
                parts[5], parts[6], parts[8], parts[9], reinterpret_cast<Limits*>(parts[7]), nullptr};
    }
};

// The same as below of keys and values that are in no blocks.
inline void locate_contiguous(const Call& call, const Unit& unit, int64_t first, int keys, int64_t element,
                              const void* zeros, KeyBlock& block) {
    const Step& step = *call.step;
    const int64_t row = unit.kv_head * step.table_stride + step.rows[unit.sequence] + first;
    const int64_t stride = call.k_bytes(element), v_stride = call.v_bytes(element);
    block.first = first;
    block.count = static_cast<int>(std::min<int64_t>(keys, unit.key_end - first));
    block.k_stride = block.count % 16 ? 0 : stride;  // behind the last there may be no memory
    for (int key = 0; key < block.count; key++) {
        block.k[key] = static_cast<const char*>(call.k) + (row + key) * stride;
        block.v[key] = static_cast<const char*>(call.v) + (row + key) * v_stride;
    }
    for (int key = block.count; key < (block.count + 31) / 32 * 32; key++) block.k[key] = block.v[key] = zeros;
}

// The block of at most `keys` keys from `first` on, through the block table.
inline void locate(const Call& call, const Unit& unit, int64_t first, int keys, int64_t element, const void* zeros,
                   KeyBlock& block) {
    const Step& step = *call.step;
    if (!step.block_table) return locate_contiguous(call, unit, first, keys, element, zeros, block);
    const int32_t* table = step.block_table + step.rows[unit.sequence] * step.table_stride;
    const bool packed = step.kv_rows.packed();
    int64_t stride = step.kv_heads * call.k_bytes(element), offset = unit.kv_head * call.k_bytes(element);
    int64_t v_stride = packed ? step.kv_heads * call.v_bytes(element) : call.form->v_slot_size * element;
    int64_t v_offset = unit.kv_head * (packed ? call.v_bytes(element) : call.form->v_head_size * element);
    block.first = first;
    block.count = static_cast<int>(std::min<int64_t>(keys, unit.key_end - first));
    block.k_stride = step.block_size % 16 == 0 && first % 16 == 0 ? stride : 0;
    int64_t index = first / step.block_size, within = first % step.block_size;
    for (int key = 0; key < block.count; index++, within = 0) {
        int64_t slot = table[index] * step.block_size + within;
        const char* k = static_cast<const char*>(call.k) + slot * stride + offset;
        const char* v = static_cast<const char*>(call.v) + slot * v_stride + v_offset;
        for (; within < step.block_size && key < block.count; within++, key++, k += stride, v += v_stride) {
            block.k[key] = k;
            block.v[key] = v;
        }
    }
    for (int key = block.count; key < (block.count + 31) / 32 * 32; key++) block.k[key] = block.v[key] = zeros;
}

// Starts loading one key's and value's rows of a block from memory, whose blocks are too scattered for the CPU to
// foresee. Called a row at a time between computations: many at once would only wait for each other.
inline __attribute__((always_inline)) void prefetch(const KeyBlock* block, int key, int64_t k_bytes, int64_t v_bytes) {
    if (!block || key >= block->count) return;
    for (int64_t at = 0; at < k_bytes; at += 64) __builtin_prefetch(static_cast<const char*>(block->k[key]) + at, 0, 2);
    for (int64_t at = 0; at < v_bytes; at += 64) __builtin_prefetch(static_cast<const char*>(block->v[key]) + at, 0, 2);
}

// Lets a block's rows be those that were unpacked.
inline void place_unpacked(const Call& call, KeyBlock& block, const Workspace& workspace, int64_t element) {
    const char* keys = static_cast<const char*>(workspace.unpacked_keys);
    const char* values = static_cast<const char*>(workspace.unpacked_values);
    block.k_stride = call.step->head_dim * element;
    for (int key = 0; key < block.count; key++) {
        block.k[key] = keys + key * block.k_stride;
        block.v[key] = values + key * block.k_stride;
    }
}

// Hides from each row of a tile what it does not go on from, among keys that branch. `scores`: [keys][lanes].
template <int LANES>
inline __attribute__((always_inline)) void hide_other_branches(const KeyBlock& block, int count, const Limits& limits,
                                                               float* scores) {
    int64_t words[LANES], loaded = -1;
    for (int64_t key = std::max<int64_t>(limits.branching_from - block.first, 0); key < count; key++) {
        const int64_t bit = block.first + key - limits.branching_from;
        if (bit / 64 != loaded) {
            loaded = bit / 64;
            for (int lane = 0; lane < LANES; lane++) words[lane] = limits.tree[lane][loaded];
        }
        float* of_key = scores + key * LANES;
        for (int lane = 0; lane < LANES; lane++) of_key[lane] = words[lane] >> (bit % 64) & 1 ? of_key[lane] : -INFINITY;
    }
}

// Computes a unit with Kernel, which has LANES, KEYS, Element and static functions:
//   start(), stop() around a thread's units, pack_queries(rows, packed, head_dim), load(call, block, workspace),
//   tile(call, block, count, masked, limits, packed, state, workspace), merge(state, other, v_dim),
//   finish(call, unit, state).
template <class Kernel>
void attend(const Call& call, const Unit& unit) {
    using Element = typename Kernel::Element;
    const Step& step = *call.step;
    constexpr int lanes = Kernel::LANES;
    const Form& form = *call.form;
    const int64_t head_dim = step.head_dim, v_dim = form.v_dim, share = step.heads / step.kv_heads;
    Workspace workspace = Workspace::of_thread(head_dim, v_dim);
    const int64_t token = step.query_starts[unit.sequence];
    const int64_t end = step.seq_lens[unit.sequence];
    const int64_t start = end - (step.query_starts[unit.sequence + 1] - token);
    const int64_t* tree = step.branches(token);
    const int tiles = static_cast<int>((unit.rows + lanes - 1) / lanes);
    const int64_t packed_size = Kernel::packed_bytes(head_dim), state_size = (v_dim + 2) * lanes;

    for (int tile = 0; tile < tiles; tile++) {
        const Element* rows[lanes];
        Limits& limits = workspace.limits[tile];
        for (int lane = 0; lane < lanes; lane++) {
            int64_t row = std::min<int64_t>(tile * lanes + lane, unit.rows - 1) + unit.first_row;
            const int64_t place = start + row / share;
            const int64_t position = tree ? place - tree[3 * (row / share) + 2] : place;
            limits.tree[lane] = tree ? tree + 3 * (row / share) : nullptr;
            limits.high[lane] = static_cast<int32_t>(form.bidirectional ? end : place + 1);
            limits.low[lane] = static_cast<int32_t>(call.first_key(position));
            if (form.slopes) {
                limits.slopes[lane] = form.slopes[unit.kv_head * share + row % share] * LOG2_E;
                limits.positions[lane] = static_cast<float>(position);
            }
            bool real = tile * lanes + lane < unit.rows;
            rows[lane] = static_cast<const Element*>(real ? call.q : workspace.zeros);
            if (real) rows[lane] += (token + row / share) * call.q_stride +
                                    (unit.kv_head * share + row % share) * head_dim;
        }
        limits.branching_from = tree ? start : end;
        limits.min_low = limits.low[0], limits.max_low = limits.low[lanes - 1];
        if (tree) {
            limits.min_low = *std::min_element(limits.low, limits.low + lanes);
            limits.max_low = *std::max_element(limits.low, limits.low + lanes);
        }
        limits.min_high = limits.high[0], limits.max_high = limits.high[lanes - 1];
        Kernel::pack_queries(rows, static_cast<char*>(workspace.queries) + tile * packed_size, head_dim);
        float* state = workspace.state + tile * state_size;
        std::fill(state, state + lanes, NEVER);
        std::fill(state + lanes, state + state_size, 0.0f);
    }
    KeyBlock blocks[2];
    if (unit.key_begin < unit.key_end)
        locate(call, unit, unit.key_begin, Kernel::KEYS, sizeof(Element), workspace.zeros, blocks[0]);
    int current = 0;
    for (int64_t first = unit.key_begin; first < unit.key_end; first += Kernel::KEYS, current ^= 1) {
        KeyBlock &block = blocks[current], &next = blocks[current ^ 1];
        next.count = 0;
        if (first + Kernel::KEYS < unit.key_end)
            locate(call, unit, first + Kernel::KEYS, Kernel::KEYS, sizeof(Element), workspace.zeros, next);
        workspace.next = &next;
        if (step.kv_rows.packed()) {
            Kernel::unpack(call, block, workspace);
            place_unpacked(call, block, workspace, sizeof(Element));
        }
        Kernel::load(call, block, workspace);
        for (int tile = 0; tile < tiles; tile++) {
            const Limits& limits = workspace.limits[tile];
            if (limits.max_high <= first || limits.min_low >= first + block.count) continue;
            int count = static_cast<int>(std::min<int64_t>(block.count, limits.max_high - first));
            bool masked = first < limits.max_low || first + count > limits.min_high;
            Kernel::tile(call, block, count, masked, limits,
                         static_cast<char*>(workspace.queries) + tile * packed_size,
                         workspace.state + tile * state_size, workspace);
            workspace.next = nullptr;
        }
    }
    if (unit.partial) {
        memcpy(unit.partial, workspace.state, tiles * state_size * sizeof(float));
        return;
    }
    Kernel::finish(call, unit, workspace.state);
}

// Where the output of a unit's row goes.
template <class Element>
inline Element* output_row(const Call& call, const Unit& unit, int64_t row) {
    const Step& step = *call.step;
    int64_t share = step.heads / step.kv_heads;
    row += unit.first_row;
    int64_t token = step.query_starts[unit.sequence] + row / share;
    int64_t head = unit.kv_head * share + row % share;
    return static_cast<Element*>(call.out) + token * call.out_stride + head * call.form->v_dim;
}

// The weight of a row's attention sink, a score whose value is zero (Xiao et al., arXiv 2309.17453), beside weights
// that are relative to `maximum`.
inline float sink_weight(const Call& call, const Unit& unit, int64_t row, float maximum) {
    const int64_t share = call.step->heads / call.step->kv_heads;
    const float sink = call.form->sinks[unit.kv_head * share + (row + unit.first_row) % share];
    return std::exp2(std::min(sink * LOG2_E - maximum, 126.0f));
}

}  // namespace blade::attention
