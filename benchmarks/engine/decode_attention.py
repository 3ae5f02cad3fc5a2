"""Attention of decodes on a CPU with AVX512-BF16 and no AMX: the kernel for few query heads beside tiles of 16 rows,
which ``--deterministic`` uses. ``python -m benchmarks.engine.decode_attention``

Each shape has as many layers as make the caches come from memory; the two kernels take turns and the fastest turn of
each counts.
"""

from __future__ import annotations

import sys
import time

import torch

from benchmarks.figures import QUICK, Figure, report
from blade_llm.kernels import native as library
from blade_llm.kernels.paged_attention import RaggedBatch, native

SHAPES = {"16_8x128": (16, 8, 128), "14_2x64": (14, 2, 64), "16_2x128": (16, 2, 128), "4_4x64": (4, 4, 64)}
"""Query heads, key heads and their width: Qwen3-0.6B, Qwen2.5-0.5B, eight query heads a key head, one."""
BATCHES = ((1, 200), (16, 200), (1, 4000))
"""Sequences and their lengths."""
LAYERS, BLOCK, TURNS = 8, 16, 5 if QUICK else 15


def microseconds(sequences: int, length: int, heads: int, kv_heads: int, head_dim: int) -> tuple[float, float]:
    """A layer's time in tiles, and along the heads' dimensions.

    Raises RuntimeError where their results differ by more than rounding.
    """
    blocks = -(-length // BLOCK)
    shape = (sequences * blocks, BLOCK, kv_heads, head_dim)
    caches = [(torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16()) for _ in range(LAYERS)]
    table = torch.randperm(sequences * blocks).int().view(sequences, blocks)
    batch = RaggedBatch.of(torch.arange(sequences), [1] * sequences, [length] * sequences)
    q = torch.randn(sequences, heads, head_dim).bfloat16()
    steps = [native.prepare(batch, table, caches[0][0], heads, deterministic) for deterministic in (True, False)]
    best, results = [float("inf")] * 2, [torch.empty(0)] * 2
    for _ in range(TURNS):
        for form, step in enumerate(steps):
            begin = time.perf_counter()
            for keys, values in caches:
                results[form] = native.paged_attention(q, keys, values, step, head_dim**-0.5, 0)
            best[form] = min(best[form], time.perf_counter() - begin)
    if not torch.allclose(results[0].float(), results[1].float(), rtol=0.02, atol=0.01):
        raise RuntimeError(f"{sequences} sequences of {length}: the kernels differ")
    return best[0] / LAYERS * 1e6, best[1] / LAYERS * 1e6


def main() -> int:
    if library.isa() != "avx512_bf16":
        print(f"both kernels are those of avx512_bf16; this CPU computes with {library.isa()}", file=sys.stderr)
        return 0
    torch.manual_seed(0)
    figures = []
    for name, shape in SHAPES.items():
        for sequences, length in BATCHES:
            tiles, few = microseconds(sequences, length, *shape)
            what = f"attention_{name}_{sequences}x{length}"
            figures += [Figure(f"{what}_tiles", tiles, "us"), Figure(f"{what}_few", few, "us")]
            figures.append(Figure(f"{what}_ratio", tiles / few, "x", ">=", 1.0))
    return report("decode_attention", figures, isa=library.isa())


if __name__ == "__main__":
    sys.exit(main())
