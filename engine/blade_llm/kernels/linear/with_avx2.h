// Multiplication with AVX2: bf16 weights become fp32 between L1 and the multipliers, quantised ones are unpacked before.
//
// A shift makes the weights of a pair's even input fp32, a mask those of the odd one. Every sum runs over the inputs in
// order, so a row's result does not depend on the rows around it.
#pragma once

#include <algorithm>

#include "unpack_avx2.h"

namespace blade {

constexpr int AVX2_ROWS = 6;              // by 16 outputs: 12 sums are what the registers hold
constexpr int AVX2_STREAM_ROWS = 2;       // up to here by both tiles of a panel at once, in the order in which they lie
constexpr int64_t AVX2_STEPS = 8;         // records that rows pass by at a time: 16 KiB, half of L1
constexpr int64_t AVX2_BLOCK_ROWS = 192;  // with AVX2_STEPS of inputs, what stays in L2
constexpr int64_t AVX2_PANELS = 8;        // with those rows' sums, too

// Floats from one input of a group of rows to the next: the rows' values lie side by side.
constexpr int lanes_of(int64_t rows) { return rows == 1 ? 1 : rows <= 4 ? 4 : 8; }

// One input of ROWS rows times the weights of 16 outputs. Written out, because gcc, left to itself, keeps more values
// alive than there are registers.
template <int ROWS>
BLADE_AVX2 static inline void add_input(__m256 (&sums)[ROWS][2], const float* x, __m256 first, __m256 second) {
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; ++i) {
        __m256 input;
        asm("vbroadcastss %3, %2\n\t"
            "vfmadd231ps %4, %2, %0\n\t"
            "vfmadd231ps %5, %2, %1"
            : "+x"(sums[i][0]), "+x"(sums[i][1]), "=&x"(input)
            : "m"(x[i]), "x"(first), "x"(second));
    }
}

// Sums of ROWS rows and a tile, PANEL apart, in registers; all loops over them must be unrolled.
template <int ROWS>
BLADE_AVX2 static inline void load_sums(__m256 (&sums)[ROWS][2], const float* from) {
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; ++i) {
        sums[i][0] = _mm256_load_ps(from + i * PANEL);
        sums[i][1] = _mm256_load_ps(from + i * PANEL + 8);
    }
}

template <int ROWS>
BLADE_AVX2 static inline void store_sums(const __m256 (&sums)[ROWS][2], float* to) {
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; ++i) {
        _mm256_store_ps(to + i * PANEL, sums[i][0]);
        _mm256_store_ps(to + i * PANEL + 8, sums[i][1]);
    }
}

// The weights of eight outputs for the even and the odd input of a pair. An instruction that the compiler cannot merge
// with the first load loads them again for the odd one: a register less is alive.
BLADE_AVX2 static inline __m256 even_weights(const bf16* row) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row)), 16));
}

BLADE_AVX2 static inline __m256 odd_weights(const bf16* row, __m256 mask) {
    __m256 weights;
    asm("vandps %1, %2, %0" : "=x"(weights) : "m"(*reinterpret_cast<const __m256*>(row)), "x"(mask));
    return weights;
}

// One pair of inputs. ``row``: of the tile.
template <int ROWS>
BLADE_AVX2 static inline void add_pair(__m256 (&sums)[ROWS][2], const float* x, const bf16* row) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffff0000)));
    add_input(sums, x, even_weights(row), even_weights(row + 16));
    add_input(sums, x + lanes_of(ROWS), odd_weights(row, mask), odd_weights(row + 16, mask));
}

// Add one tile of each of ``steps`` records of bf16. ``ahead``: as many bytes as the records have, to fetch meanwhile.
// Not inlined, as the next one is not: gcc would find no place for the sums.
template <int ROWS, bool PREFETCH>
BLADE_AVX2 __attribute__((noinline)) static void add_tiles(
    float* to, const float* x, const bf16* tile, int64_t steps, const uint8_t* ahead) {
    __m256 sums[ROWS][2];
    load_sums(sums, to);
    for (; steps > 0; --steps, tile += 2 * TILE_WORDS)
        for (int pair = 0; pair < 16; ++pair, x += 2 * lanes_of(ROWS)) {
            if constexpr (PREFETCH) {
                _mm_prefetch(ahead, _MM_HINT_T0);
                _mm_prefetch(ahead + 64, _MM_HINT_T0);
                ahead += 128;
            }
            add_pair(sums, x, tile + pair * 32);
        }
    store_sums(sums, to);
}

// Add both tiles of each record, fetching ``distance`` bytes ahead.
template <int ROWS>
BLADE_AVX2 __attribute__((noinline)) static void add_stream(
    float* to, const float* x, const bf16* row, int64_t steps, int64_t distance) {
    __m256 first[ROWS][2], second[ROWS][2];
    load_sums(first, to);
    load_sums(second, to + 16);
    for (; steps > 0; --steps, x += STEP * lanes_of(ROWS)) {
        for (int pair = 0; pair < 16; ++pair, row += 32) {
            _mm_prefetch(reinterpret_cast<const char*>(row) + distance, _MM_HINT_T0);
            add_pair(first, x + pair * 2 * lanes_of(ROWS), row);
        }
        for (int pair = 0; pair < 16; ++pair, row += 32) {
            _mm_prefetch(reinterpret_cast<const char*>(row) + distance, _MM_HINT_T0);
            add_pair(second, x + pair * 2 * lanes_of(ROWS), row);
        }
    }
    store_sums(first, to);
    store_sums(second, to + 16);
}

// A group of at most AVX2_ROWS rows: their inputs in fp32, and where their sums and outputs for a panel are.
struct Rows {
    int count;
    const float* x;
    float* sums;  // [count, PANEL]
    bf16* y;
    int64_t y_stride;

    void clear() const { memset(sums, 0, count * PANEL * sizeof(float)); }

    BLADE_AVX2 void finish(const EpilogueAvx2& epilogue) const {
        for (int i = 0; i < count; ++i)
            for (int tile = 0; tile < 2; ++tile) {
                const float* from = sums + i * PANEL + tile * 16;
                epilogue.store(y + i * y_stride, tile, _mm256_load_ps(from), _mm256_load_ps(from + 8));
            }
    }
};

// The template for a number of rows that is known at run time only. ``ahead`` may be null.
template <int MOST = AVX2_ROWS>
BLADE_AVX2 static inline void add_records(const Rows& rows, const bf16* tiles, int64_t steps, const uint8_t* ahead) {
    if constexpr (MOST > 1)
        if (rows.count < MOST) return add_records<MOST - 1>(rows, tiles, steps, ahead);
    if (ahead)
        add_tiles<MOST, true>(rows.sums, rows.x, tiles, steps, ahead);
    else
        add_tiles<MOST, false>(rows.sums, rows.x, tiles, steps, nullptr);
    add_tiles<MOST, false>(rows.sums + 16, rows.x, tiles + TILE_WORDS, steps, nullptr);
}

// The scale of an input of a row: what was rounded is multiplied by it before it is by weights.
struct RowScales {
    const float* scales;  // of the first row, or null
    int64_t groups, group;  // scales of a row, and inputs that share one

    float at(int64_t row, int64_t input) const { return scales ? scales[row * groups + input / group] : 1.0f; }
};

// Four values of a row in fp32, scaled; zeros where there is no row.
BLADE_AVX2 static inline __m128 four_inputs(
    const bf16* x, bool exists, const RowScales& scales, int64_t row, int64_t at) {
    if (!exists) return _mm_setzero_ps();
    const __m128i values = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x));
    const __m128 floats = _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(values), 16));
    return scales.scales ? _mm_mul_ps(floats, _mm_set1_ps(scales.at(row, at))) : floats;
}

// ``count`` rows from ``x`` on, as add_input wants them.
BLADE_AVX2 static void widen_rows(
    const bf16* x, int64_t x_stride, int64_t count, int64_t width, const RowScales& scales, float* to) {
    const int lanes = lanes_of(count);
    if (lanes == 1) {
        for (int64_t at = 0; at < width; at += 8)
            _mm256_storeu_ps(to + at, _mm256_mul_ps(load_bf16x8(x + at), _mm256_set1_ps(scales.at(0, at))));
        return;
    }
    for (int row = 0; row < lanes; row += 4)
        for (int64_t at = 0; at < width; at += 4) {
            __m128 values[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) values[i] = four_inputs(x + (row + i) * x_stride + at, row + i < count, scales, row + i, at);
            _MM_TRANSPOSE4_PS(values[0], values[1], values[2], values[3]);
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) _mm_storeu_ps(to + (at + i) * lanes + row, values[i]);
        }
}

// A group of rows by panels of bf16, as memory brings them.
BLADE_AVX2 static void few_rows(const Weight& weight, int64_t first, int64_t last, Rows rows) {
    const int64_t all_steps = weight.steps(), distance = prefetch_distance(Kind::bf16);
    const float* x = rows.x;
    for (int64_t panel = first; panel < last; ++panel, rows.y += PANEL, rows.x = x) {
        const bf16* tiles = reinterpret_cast<const bf16*>(weight.records + panel * weight.panel_bytes());
        rows.clear();
        if (rows.count == 1) {
            add_stream<1>(rows.sums, x, tiles, all_steps, distance);
        } else if (rows.count <= AVX2_STREAM_ROWS) {
            add_stream<AVX2_STREAM_ROWS>(rows.sums, x, tiles, all_steps, distance);
        } else {
            for (int64_t step = 0; step < all_steps; step += AVX2_STEPS) {
                const bf16* some = tiles + step * 2 * TILE_WORDS;
                const int64_t steps = std::min(AVX2_STEPS, all_steps - step);
                add_records(rows, some, steps, reinterpret_cast<const uint8_t*>(some) + distance);
                rows.x += steps * STEP * lanes_of(rows.count);
            }
        }
        rows.finish(EpilogueAvx2(weight, panel));
    }
}

// Groups of rows by at most AVX2_PANELS panels, a few steps at a time: they stay in L1 while the rows pass by.
template <Kind KIND>
BLADE_AVX2 static void many_rows(
    const Weight& weight, int64_t first, int64_t last, const Rows* groups, int64_t count, bf16* unpacked, __m256i levels) {
    const int64_t all_steps = weight.steps(), stride = AVX2_BLOCK_ROWS * PANEL;
    const GroupForm form(weight);
    auto of_panel = [&](Rows rows, int64_t panel) {
        rows.sums += (panel - first) * stride;
        rows.y += (panel - first) * PANEL;
        return rows;
    };
    for (int64_t panel = first; panel < last; ++panel)
        for (int64_t i = 0; i < count; ++i) of_panel(groups[i], panel).clear();
    for (int64_t step = 0; step < all_steps; step += AVX2_STEPS) {
        const int64_t steps = std::min(AVX2_STEPS, all_steps - step);
        for (int64_t panel = first; panel < last; ++panel) {
            const Panel<KIND> panel_records(weight, panel);
            const uint8_t* records = panel_records.record(step);
            if constexpr (KIND != Kind::bf16)
                for (int64_t i = 0; i < steps; ++i)
                    unpack_avx2<KIND>(panel_records, step + i, unpacked + i * 2 * TILE_WORDS, levels, form);
            const bf16* tiles = KIND == Kind::bf16 ? reinterpret_cast<const bf16*>(records) : unpacked;
            for (int64_t i = 0; i < count; ++i) {
                Rows rows = of_panel(groups[i], panel);
                rows.x += step * STEP * lanes_of(rows.count);
                add_records(rows, tiles, steps, i == 0 ? records + weight.panel_bytes() : nullptr);
            }
        }
    }
    for (int64_t panel = first; panel < last; ++panel) {
        const EpilogueAvx2 epilogue(weight, panel);
        for (int64_t i = 0; i < count; ++i) of_panel(groups[i], panel).finish(epilogue);
    }
}

template <Kind KIND>
BLADE_AVX2 static void multiply_avx2(const Job& job, int64_t first, int64_t last, Buffers& buffers) {
    const Weight& weight = *job.weight;
    const int64_t width = weight.steps() * STEP, block_rows = std::min(job.rows, AVX2_BLOCK_ROWS);
    const int64_t most_groups = (block_rows + AVX2_ROWS - 1) / AVX2_ROWS;
    float* x = buffers.widened.get(most_groups * lanes_of(AVX2_ROWS) * width * sizeof(float));
    float* sums = buffers.sums.get(AVX2_PANELS * AVX2_BLOCK_ROWS * PANEL * sizeof(float));
    bf16* unpacked = KIND == Kind::bf16 ? nullptr : buffers.unpacked.get(AVX2_STEPS * UNPACKED_RECORD);
    const __m256i levels = _mm256_broadcastsi128_si256(level_bytes<KIND>(weight));
    Rows groups[AVX2_BLOCK_ROWS / AVX2_ROWS];
    for (int64_t block = 0; block < job.rows; block += block_rows) {
        const int64_t rows = std::min(block_rows, job.rows - block), count = (rows + AVX2_ROWS - 1) / AVX2_ROWS;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t begin = rows * i / count, row = block + begin;
            const int some = static_cast<int>(rows * (i + 1) / count - begin);
            float* to = x + i * lanes_of(AVX2_ROWS) * width;
            const float* own = job.row_scales ? job.row_scales + row * job.row_groups : nullptr;
            const RowScales scales{own, job.row_groups, weight.input_steps ? weight.input_steps * STEP : width};
            widen_rows(job.x + row * job.x_stride, job.x_stride, some, width, scales, to);
            groups[i] = {some, to, sums + begin * PANEL, job.y + row * job.y_stride + first * PANEL, job.y_stride};
        }
        if (KIND == Kind::bf16 && count == 1) {
            few_rows(weight, first, last, groups[0]);
            continue;
        }
        for (int64_t panel = first; panel < last; panel += AVX2_PANELS) {
            const int64_t end = std::min(panel + AVX2_PANELS, last);
            many_rows<KIND>(weight, panel, end, groups, count, unpacked, levels);
            for (int64_t i = 0; i < count; ++i) groups[i].y += AVX2_PANELS * PANEL;
        }
    }
}

}  // namespace blade
