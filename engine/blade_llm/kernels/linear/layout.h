// How a weight lies in memory: as the sequence of bytes that its multiplication reads.
//
// Outputs are divided into panels of 32, inputs into steps of 32; both are padded with zeros. The record of one (panel,
// step) is two tiles of 16 outputs; records of a panel follow each other, panels follow each other, so a thread that
// computes a run of panels reads one contiguous stream. A tile in bf16 is what AMX and AVX512-BF16 want: row r holds for
// each of the 16 outputs its weights of inputs 2r and 2r+1 (64 bytes).
//
//   bf16  2 tiles of 16 rows of 64 bytes                                                     2048 bytes
//   int8  2 tiles of 8 vectors of 64 bytes; a vector holds for each of the 16 outputs its
//         weights of four inputs, what VNNI and AMX want of bytes, plus 128; one fp32 scale
//         per output, elsewhere                                                              1024 bytes
//   int4  2 tiles of 4 vectors of 64 bytes; a vector holds four rows, row i in the i-th
//         nibbles of its words; then a bf16 scale for each of the 32 outputs: a group is
//         the 32 inputs of the step                                                           576 bytes
//   affine4, affine8: values as in int4 and int8, which are integers 0 to 15 or 255. A group
//         is any number of steps, the last one of a panel may be shorter; behind its
//         records there is a scale for each of the 32 outputs (bf16, fp16 or fp32, as it
//         was stored), and, where there are zero points, how far each lies above the middle
//         (8 or 128), one int8 an output                                          512 or 1024 bytes
//   w8a8  as int8, but for two steps at a time: 2 tiles of 16 vectors of 64 bytes, the
//         whole tiles that AMX wants of bytes                                  2048 bytes for two
//   float8  as int8, with e4m3 in the bytes, those of four outputs in the order of rows: inputs
//         0 and 1 of each, then 2 and 3; where groups of steps have scales of their
//         own, a fp32 scale for each of the 32 outputs behind the records of each           1024 bytes
#pragma once

#include <algorithm>

#include <atomic>
#include <cstdlib>

#include "bf16.h"

namespace blade {

enum class Kind : int32_t { bf16 = 0, int8 = 1, int4 = 2, affine4 = 3, affine8 = 4, w8a8 = 5, float8 = 6 };
constexpr int KINDS = 7;
// What becomes of activations before they are multiplied: nothing, or 8-bit integers, or e4m3.
enum class Rounding : int32_t { none = 0, int8 = 1, fp8 = 2 };
enum class ScaleType : int32_t { bf16 = 0, fp16 = 1, fp32 = 2 };

constexpr int PANEL = 32;       // outputs
constexpr int STEP = 32;        // inputs
constexpr int TILE_WORDS = 512;  // bf16 values in a tile
constexpr int UNPACKED_RECORD = 2048;

constexpr bool is_affine(Kind kind) { return kind == Kind::affine4 || kind == Kind::affine8; }
// Whether scales lie behind the records of each group of a weight that has groups.
constexpr bool may_have_groups(Kind kind) { return kind == Kind::int4 || is_affine(kind) || kind == Kind::float8; }
constexpr bool has_nibbles(Kind kind) { return kind == Kind::int4 || kind == Kind::affine4; }

// Every level of nibbles is a whole number of 1/units: int4's by design, affine4's because they are integers.
constexpr int level_units(Kind kind) { return kind == Kind::int4 ? 128 : 1; }

constexpr int VALUE_BYTES_4 = 512, VALUE_BYTES_8 = 1024;  // of a record, without scales
constexpr int INT4_SCALE_BYTES = PANEL * 2;
constexpr int W8A8_INPUTS = 64, W8A8_RECORD = W8A8_INPUTS * PANEL;

constexpr int value_bytes(Kind kind) {
    return kind == Kind::bf16 ? UNPACKED_RECORD : has_nibbles(kind) ? VALUE_BYTES_4 : VALUE_BYTES_8;
}

// As _Weight in native.py.
struct Weight {
    Kind kind;
    int32_t fixed_order;  // one way of summing for any number of rows
    int64_t outputs, inputs;
    uint8_t* records;
    float* scales;       // int8, w8a8, float8 without groups: [padded outputs]
    const float* bias;   // [padded outputs], or null
    const bf16* levels;  // int4, affine4: [32], the 16 levels twice; int4's are multiples of 1/128
    int64_t group_steps;  // int4: 1; affine, float8: of every group but the last; float8: 0 for none
    ScaleType scale_type;  // of affine; float8: fp32
    int32_t has_zeros;     // affine: zero points, else they are in the middle
    const int32_t* order;  // [inputs]: the input that each column of the weight multiplies; null: they are the same
    Rounding rounding;     // w8a8: int8; float8: none or fp8; others: none
    float input_scale;     // of all activations (static); 0: of each row, or each group of its inputs, by their largest
    int64_t input_steps;   // float8: of every group of inputs but the last with a scale of its own; 0: whole rows

    int64_t panels() const { return (outputs + PANEL - 1) / PANEL; }
    int64_t steps() const { return (inputs + STEP - 1) / STEP; }
    int64_t groups() const { return group_steps ? (steps() + group_steps - 1) / group_steps : 0; }
    int64_t scale_bytes() const { return PANEL * (scale_type == ScaleType::fp32 ? 4 : 2); }
    // What follows the values of a group.
    int64_t group_bytes() const { return kind == Kind::int4 ? INT4_SCALE_BYTES : scale_bytes() + has_zeros * PANEL; }
    int64_t panel_bytes() const {
        if (kind == Kind::w8a8) return (steps() + 1) / 2 * W8A8_RECORD;
        return steps() * value_bytes(kind) + groups() * group_bytes();
    }
    // Whether ``scales`` has one for each output.
    bool scales_outputs() const {
        return kind == Kind::int8 || kind == Kind::w8a8 || (kind == Kind::float8 && !group_steps);
    }
};

// The records of a panel.
template <Kind KIND>
class Panel {
public:
    Panel(const Weight& weight, int64_t panel)
        : records_(weight.records + panel * weight.panel_bytes()),
          steps_(weight.steps()),
          group_steps_(weight.group_steps),
          group_bytes_(weight.group_bytes()) {}

    int64_t group_steps() const {
        if constexpr (KIND == Kind::int4) return 1;
        return may_have_groups(KIND) && group_steps_ ? group_steps_ : steps_;
    }

    int64_t groups() const { return (steps_ + group_steps() - 1) / group_steps(); }

    int64_t group_bytes() const {
        if constexpr (KIND == Kind::int4) return INT4_SCALE_BYTES;
        return may_have_groups(KIND) && group_steps_ ? group_bytes_ : 0;
    }

    const uint8_t* record(int64_t step) const {
        if constexpr (!may_have_groups(KIND)) return records_ + step * value_bytes(KIND);
        return records_ + step * value_bytes(KIND) + step / group_steps() * group_bytes();
    }

    // Of the group that step ``step`` belongs to; null where scales are elsewhere.
    const uint8_t* scales(int64_t step) const {
        if (!may_have_groups(KIND) || !group_bytes()) return nullptr;
        const int64_t group = step / group_steps();
        return records_ + std::min((group + 1) * group_steps(), steps_) * value_bytes(KIND) + group * group_bytes();
    }

private:
    const uint8_t* records_;
    int64_t steps_, group_steps_, group_bytes_;
};

// One multiplication: y[rows, outputs] = x[rows, inputs] W^T + bias.
struct Job {
    const Weight* weight;
    const bf16* x;  // in the weight's order, padded to whole steps
    int64_t rows, x_stride;
    bf16* y;
    int64_t y_stride;
    // Where activations were rounded (rounded.h): then ``x`` is null for integers.
    const int8_t* bytes = nullptr;         // [rows, x_stride]
    const int32_t* offsets = nullptr;      // [rows]: what sums of bytes start from
    const float* row_scales = nullptr;     // [rows, row_groups]; null: 1
    int64_t row_groups = 1;
};

// How far ahead of its reads a kernel that is bound by them fetches weights, in bytes; 0 leaves that to the CPU. What is
// best depends on the machine, not on the instruction set, so it is measured for each kind (measure_prefetch in native.py).
inline std::atomic<int64_t> prefetch_distances[KINDS] = {2048, 2048, 2048, 2048, 2048, 2048, 2048};

inline int64_t prefetch_distance(Kind kind) { return prefetch_distances[static_cast<int>(kind)]; }

// Rows up to which quantised weights are multiplied as integers on AVX-512, where that is known to pay; more are multiplied
// in bf16 unless integers are faster for any number, which depends on the CPU (measure_integers in native.py).
constexpr int64_t INTEGER_ROWS_AVX512 = 7, INTEGER_ROWS_AMX = 2;
inline std::atomic<bool> always_integers{false};

// Aligned memory that a thread keeps between calls.
template <class T>
class Buffer {
public:
    T* get(size_t bytes) {
        if (bytes > size_) {
            free(data_);
            data_ = aligned_alloc(64, size_ = (bytes + 4095) & ~size_t{4095});
        }
        return static_cast<T*>(data_);
    }
    ~Buffer() { free(data_); }

private:
    void* data_ = nullptr;
    size_t size_ = 0;
};

struct Buffers {
    Buffer<bf16> inputs, unpacked;
    Buffer<float> sums, widened;
    Buffer<int8_t> bytes, rounded;
    Buffer<int32_t> offsets;
    Buffer<float> row_scales;
};

}  // namespace blade
