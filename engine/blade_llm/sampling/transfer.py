"""Small host lists to the device; to a GPU through pinned memory, so that the copy queues behind the running step
instead of making the host wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor


def to_device(
    values: Sequence[int] | Sequence[float] | Sequence[Sequence[int]],
    device: torch.device,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """A tensor of ``values`` on ``device``."""
    tensor = torch.tensor(values, dtype=dtype)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def all_to_device(vectors: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Several vectors of 64-bit words, int64 or fp64, in one transfer."""
    ends = list(accumulate((len(vector) for vector in vectors), initial=0))
    host = torch.empty(ends[-1], dtype=torch.int64, pin_memory=device.type == "cuda")
    words = host.numpy()
    for start, vector in zip(ends, vectors, strict=False):
        words[start : start + len(vector)] = vector.view(np.int64)
    sent = host if device.type == "cpu" else host.to(device, non_blocking=True)
    parts = sent.tensor_split(ends[1:-1])
    return [
        part.view(torch.float64) if vector.dtype == np.float64 else part
        for part, vector in zip(parts, vectors, strict=True)
    ]


def words_to_device(words: np.ndarray, device: torch.device) -> Tensor:
    """A contiguous array on ``device``; on CPU the array itself, not a copy."""
    host = torch.from_numpy(words)
    if device.type == "cpu":
        return host
    pinned = torch.empty(host.shape, dtype=host.dtype, pin_memory=device.type == "cuda")
    return pinned.copy_(host).to(device, non_blocking=True)
