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
#pragma once

#include <atomic>
#include <cstdlib>

#include "bf16.h"

namespace blade {

enum class Kind : int32_t { bf16 = 0, int8 = 1, int4 = 2 };

constexpr int PANEL = 32;       // outputs
constexpr int STEP = 32;        // inputs
constexpr int TILE_WORDS = 512;  // bf16 values in a tile
constexpr int UNPACKED_RECORD = 2048;

constexpr int record_bytes(Kind kind) { return kind == Kind::bf16 ? 2048 : kind == Kind::int8 ? 1024 : 576; }

// As _Weight in native.py.
struct Weight {
    Kind kind;
    int32_t fixed_order;  // one way of summing for any number of rows
    int64_t outputs, inputs;
    uint8_t* records;
    float* scales;       // int8: [padded outputs]
    const float* bias;   // [padded outputs], or null
    const bf16* levels;  // int4: [32], the 16 levels twice, all multiples of 1/128

    int64_t panels() const { return (outputs + PANEL - 1) / PANEL; }
    int64_t steps() const { return (inputs + STEP - 1) / STEP; }
    int64_t panel_bytes() const { return steps() * record_bytes(kind); }
};

// One multiplication: y[rows, outputs] = x[rows, inputs] W^T + bias.
struct Job {
    const Weight* weight;
    const bf16* x;  // padded to whole steps
    int64_t rows, x_stride;
    bf16* y;
    int64_t y_stride;
};

// How far ahead of its reads a kernel that is bound by them fetches weights, in bytes; 0 leaves that to the CPU. What is
// best depends on the machine, not on the instruction set, so it is measured (measure_prefetch in native.py).
inline std::atomic<int64_t> prefetch_distance{2048};

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
    Buffer<int8_t> bytes;
};

}  // namespace blade
