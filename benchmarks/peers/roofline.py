"""How fast this machine reads memory: the bound of a decode step, which reads every weight once."""

from __future__ import annotations

import time

import torch

BYTES = 1 << 30


def read_bandwidth(rounds: int = 10) -> float:
    """Bytes a second, the best of ``rounds`` sums of one GiB by all threads."""
    data = torch.ones(BYTES // 8, dtype=torch.int64)
    best = 0.0
    for _ in range(rounds):
        begin = time.perf_counter()
        data.sum()
        best = max(best, BYTES / (time.perf_counter() - begin))
    return best
