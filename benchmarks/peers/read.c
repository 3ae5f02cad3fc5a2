/* Reads memory and does nothing else with it: what no program that reads every weight once can beat. */

#include <stdint.h>

typedef int64_t vector __attribute__((vector_size(32)));

enum { STEP = 8 };

/* The memory folded into one number, lest its reading is optimised away. `count`: of vectors, a multiple of 8. `ahead`:
 * vectors from what is read to what is prefetched. Some CPUs need that, for their own prefetcher stops at each 4 KiB page;
 * others are faster alone, with 0. */
int64_t read_vectors(const vector *data, int64_t count, int64_t ahead) {
    int64_t folded = 0;
#pragma omp parallel reduction(^ : folded)
    {
        vector sums[STEP] = {{0}};
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < count; i += STEP) {
            for (int j = 0; j < STEP; j += 2) __builtin_prefetch(&data[i + ahead + j]);
            for (int j = 0; j < STEP; j++) sums[j] ^= data[i + j];
        }
        for (int j = 1; j < STEP; j++) sums[0] ^= sums[j];
        for (int j = 0; j < 4; j++) folded ^= sums[0][j];
    }
    return folded;
}
