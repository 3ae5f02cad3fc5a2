// What the CPU can do, found at run time, and the permission to use AMX that Linux wants a process to ask for.
#include <atomic>

#include <cpuid.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "isa.h"

namespace {

std::atomic<int> level{0};

bool has_amx() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    bool tiles = (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1);  // AMX-BF16, AMX-TILE, AMX-INT8
    constexpr long request_permission = 0x1023, tile_data = 18;    // ARCH_REQ_XCOMP_PERM
    return tiles && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

blade::Isa detect() {
    using blade::Isa;
    __builtin_cpu_init();
    if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) return Isa::baseline;
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512vnni");
    if (!avx512) return Isa::avx2;
    if (!__builtin_cpu_supports("avx512bf16")) return Isa::avx512;
    return has_amx() ? Isa::amx : Isa::avx512_bf16;
}

}  // namespace

blade::Isa blade::isa() { return static_cast<Isa>(level.load(std::memory_order_relaxed)); }

BLADE_EXPORT int blade_detect_isa() { return static_cast<int>(detect()); }

BLADE_EXPORT int blade_isa() { return level; }

BLADE_EXPORT void blade_set_isa(int isa) { level = isa; }

// Threads of a parallel loop: what torch.set_num_threads() set, because the OpenMP is the same.
BLADE_EXPORT int blade_num_threads() {
    int threads = 1;
#pragma omp parallel
#pragma omp single
    threads = omp_get_num_threads();
    return threads;
}
