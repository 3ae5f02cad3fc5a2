"""How fast this machine reads memory: the bound of a decode step, which reads every weight once."""

from __future__ import annotations

import ctypes
import time

import torch

from blade_llm.kernels import native

BYTES = 1 << 30


def read_bandwidth(rounds: int = 10) -> float:
    """Bytes a second, the best of ``rounds`` reads of one GiB by all threads: what nothing that reads can beat."""
    data = torch.ones(BYTES // 8, dtype=torch.int64)
    library = native.library()
    best = 0.0
    for _ in range(rounds):
        begin = time.perf_counter()
        if library is not None and hasattr(library, "bladellm_read"):
            library.bladellm_read(ctypes.c_void_p(data.data_ptr()), ctypes.c_int64(BYTES))
        else:
            data.sum()
        best = max(best, BYTES / (time.perf_counter() - begin))
    return best
