"""The GPU of a benchmark: its measured limits, how time is taken on it, and how results are reported.

Without a GPU everything runs as a dry run: tiny shapes, kernels in Triton's interpreter, no figure worth keeping and no
file written. It shows that the benchmark works.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks import figures
from benchmarks.figures import QUICK, Figure

DRY = not torch.cuda.is_available()
DEVICE = torch.device("cpu" if DRY else "cuda")
SECONDS = float(os.environ.get("GPU_SECONDS") or "inf")
"""``GPU_SECONDS``: what has not begun so long after the part's start is skipped, and named."""
FOLDER = Path(os.environ.get("GPU_RESULTS") or figures.RESULTS)
"""``GPU_RESULTS``: another folder for the results."""
_BEGAN = time.perf_counter()


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


def remaining() -> float:
    """Seconds of ``GPU_SECONDS`` that are left to this process."""
    return SECONDS - (time.perf_counter() - _BEGAN)


class Results:
    """The figures of a part. They are written after every measurement, and one that fails takes no other along."""

    def __init__(self, part: str) -> None:
        self.figures: list[Figure] = []
        self._part = part
        self._failed: list[str] = []
        self._skipped: list[str] = []

    def measure(self, name: str, run: Callable[..., Iterable[Figure]], *arguments: Any) -> bool:
        """Add what ``run(*arguments)`` yields, unless the time is over; whether it did so to its end."""
        if remaining() < 0:
            self._skipped.append(name)
            return False
        try:
            for figure in run(*arguments):
                print(figure, flush=True)
                self.figures.append(figure)
        except Exception:
            traceback.print_exc()
            self._failed.append(name)
            return False
        finally:
            self._write()
        return True

    def finish(self) -> int:
        """The exit code: 1 when a target is missed or something failed."""
        self._write()
        for what, names in (("failed", self._failed), ("skipped, GPU_SECONDS is over", self._skipped)):
            if names:
                print(f"{self._part}: {what}: {', '.join(names)}", file=sys.stderr)
        if DRY:
            print(f"dry run of {self._part}: no GPU here, nothing written", file=sys.stderr)
        return int(bool(self._failed) or not (DRY or all(figure.reached for figure in self.figures)))

    def _write(self) -> None:
        if DRY:
            return
        content = {
            "benchmark": f"gpu_{self._part}",
            "quick": QUICK,
            "machine": _machine(),
            "failed": self._failed,
            "skipped": self._skipped,
            "figures": [asdict(figure) for figure in self.figures],
        }
        text = json.dumps(content, indent=2) + "\n"
        (FOLDER / f"gpu_{self._part}.json").write_text(text, encoding="utf-8")


@cache
def _machine() -> dict[str, Any]:
    import triton

    properties = torch.cuda.get_device_properties(0)
    return figures.machine() | {
        "gpu": properties.name,
        "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def percentile(values: list[float], share: float) -> float:
    """The smallest value that ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")
