"""What a step sends to the device, packed into one copy.

Each step fills a buffer of its own. For a GPU it is pinned and comes from torch's caching allocator, which hands a
buffer out again only after the copies that read it have finished: a copy still in flight is never overwritten, and
nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Staging:
    """Collects int64 vectors, then sends them all at once."""

    __slots__ = ("_device", "_sizes", "_vectors")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._vectors: list[np.ndarray | Sequence[int]] = []
        self._sizes: list[int] = []

    def add(self, vector: np.ndarray | Sequence[int]) -> None:
        """Append a vector of whole numbers; :meth:`send` returns them in this order."""
        self._vectors.append(vector)
        self._sizes.append(len(vector))

    def send(self) -> tuple[Tensor, ...]:
        """The vectors on the device, int64: views of one tensor, one copy for a GPU and none on CPU."""
        on_gpu = self._device.type == "cuda"
        host = torch.empty(sum(self._sizes), dtype=torch.int64, pin_memory=on_gpu)
        words = host.numpy()
        offset = 0
        for vector, size in zip(self._vectors, self._sizes, strict=True):
            words[offset : offset + size] = vector
            offset += size
        packed = host.to(self._device, non_blocking=True) if on_gpu else host
        return torch.split(packed, self._sizes)
