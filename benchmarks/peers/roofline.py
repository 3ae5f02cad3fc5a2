"""How fast this machine reads memory: the bound of a decode step, which reads every weight once."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.peers.peers import CACHE

BYTES = 1 << 30


def weight_bytes(model: Path) -> int:
    """Bytes a decode step reads: every weight, for the embedding is the output matrix too (tied)."""
    return (model / "model.safetensors").stat().st_size


def read_bandwidth(rounds: int = 10) -> float:
    """Bytes a second, the best of ``rounds`` reads (of each way) of one GiB in huge pages by all threads.

    Without a compiler torch's sum reads, which can be a third slower; a note says so.
    """
    memory = mmap.mmap(-1, BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    data = torch.frombuffer(memory, dtype=torch.int64).fill_(1)  # written once: before, all pages are the same zeros
    ways = _compiled(data) or [data.sum]
    return max(_rate(read) for _ in range(rounds) for read in ways)


def _rate(read: Callable[[], object]) -> float:
    begin = time.perf_counter()
    read()
    return BYTES / (time.perf_counter() - begin)


def _compiled(data: torch.Tensor) -> list[Callable[[], object]]:
    """``read.c`` on ``data``, compiled for this CPU, without and with prefetching; nothing without a compiler.

    Raises:
        subprocess.CalledProcessError: the compiler fails.
    """
    compiler = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("g++")
    if compiler is None:
        print("no compiler: the read bandwidth is torch's sum's, an underestimate", file=sys.stderr)
        return []
    CACHE.mkdir(parents=True, exist_ok=True)
    source, library = Path(__file__).with_name("read.c"), CACHE / "read.so"
    flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-x", "c", source, "-o", library], check=True)
    function = ctypes.CDLL(str(library)).read_vectors
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int64
    return [partial(function, data.data_ptr(), BYTES // 32, ahead) for ahead in (0, 128, 256)]
