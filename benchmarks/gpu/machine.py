"""The GPU of a benchmark: its measured limits, how time is taken on it, and how results are reported.

Without a GPU everything runs as a dry run: tiny shapes, kernels in Triton's interpreter, no figure worth keeping and no
file written. It shows that the benchmark works.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from benchmarks import figures
from benchmarks.figures import QUICK, Figure, report

DRY = not torch.cuda.is_available()
DEVICE = torch.device("cpu" if DRY else "cuda")


def seconds(run: Callable[[], Any]) -> float:
    """Median time of ``run`` on the GPU, from a cold L2 cache."""
    if DRY:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    from triton.testing import do_bench

    return float(do_bench(run, warmup=10, rep=30 if QUICK else 80, return_mode="median")) / 1e3


def synchronize() -> None:
    if not DRY:
        torch.cuda.synchronize()


@cache
def bandwidth() -> float:
    """Bytes a second of a large copy, read and written: what memory-bound work is measured against."""
    source = torch.ones(1 << (16 if DRY else 31), dtype=torch.int8, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source))


@cache
def peak() -> float:
    """Floating point operations a second of a large bf16 matrix product of random numbers."""
    size = 128 if DRY else 8192
    a, b = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / min(seconds(lambda: a @ b) for _ in range(3))


def limits() -> list[Figure]:
    """The machine's two limits as figures."""
    return [Figure("copy_bandwidth", bandwidth() / 1e9, "GB/s"), Figure("matmul_peak", peak() / 1e12, "TFLOP/s")]


def finish(part: str, results: list[Figure]) -> int:
    """Print the figures and, on a GPU, write ``results/gpu_<part>.json``; the exit code."""
    if DRY:
        print(*results, sep="\n")
        print(f"dry run of {part}: no GPU here, nothing written", file=sys.stderr)
        return 0
    code = report(f"gpu_{part}", results)
    path = figures.RESULTS / f"gpu_{part}.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    import triton

    properties = torch.cuda.get_device_properties(0)
    content["machine"] |= {
        "gpu": properties.name,
        "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return code


def percentile(values: list[float], share: float) -> float:
    """The smallest value that ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")
