// Which instruction sets a function is compiled for, and which one the CPU has.
//
// Every function that uses intrinsics carries one of the BLADE_* attributes and is only called when blade::isa() says
// that the CPU has the set. Helpers with a smaller set inline into functions with a larger one. OpenMP regions inherit
// the attribute of the function around them; lambdas and structs' methods do not: give them their own.
#pragma once

#include <cstdint>
#include <immintrin.h>

#define BLADE_EXPORT extern "C" __attribute__((visibility("default")))

#define BLADE_AVX2_SET "avx2,fma,f16c"
#define BLADE_AVX512_SET BLADE_AVX2_SET ",avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
#define BLADE_AVX512_BF16_SET BLADE_AVX512_SET ",avx512bf16,avx512vbmi"
#define BLADE_AMX_SET BLADE_AVX512_BF16_SET ",amx-tile,amx-bf16,amx-int8"

#define BLADE_AVX2 __attribute__((target(BLADE_AVX2_SET)))
#define BLADE_AVX512 __attribute__((target(BLADE_AVX512_SET)))
#define BLADE_AVX512_BF16 __attribute__((target(BLADE_AVX512_BF16_SET)))
#define BLADE_AMX __attribute__((target(BLADE_AMX_SET)))

namespace blade {

// Each level includes those before it; the names are ISA_NAMES in __init__.py.
enum class Isa : int { baseline = 0, avx2 = 1, avx512 = 2, avx512_bf16 = 3, amx = 4 };

// The level in use: what the CPU has, or less when asked for.
Isa isa();

}  // namespace blade
