"""Packs all that a step sends to the device into one copy.

Each step fills a buffer of its own. For a GPU it is pinned and comes from torch's caching allocator, which hands a
buffer out again only after the copies that read it have finished: a copy still in flight is never overwritten, and
nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT: Final = 2
"""Alignment in words: each vector begins at a multiple of 16 bytes, so that Triton needs no variant for others."""


class Staging:
    """Collects int64 vectors, then sends them all at once."""

    __slots__ = ("_device", "_parts", "_size")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._parts: list[tuple[np.ndarray | Sequence[int], slice]] = []
        self._size = 0

    def add(self, vector: np.ndarray | Sequence[int]) -> None:
        """Append a vector of whole numbers; :meth:`send` returns them in this order."""
        length = len(vector)
        self._parts.append((vector, slice(self._size, self._size + length)))
        self._size += -(-length // _ALIGNMENT) * _ALIGNMENT

    def send(self) -> list[Tensor]:
        """The vectors on the device, int64: views of one tensor, one copy for a GPU and none on CPU."""
        on_gpu = self._device.type == "cuda"
        host = torch.empty(self._size, dtype=torch.int64, pin_memory=on_gpu)
        words = host.numpy()
        for vector, place in self._parts:
            words[place] = vector
        packed = host.to(self._device, non_blocking=True) if on_gpu else host
        return [packed[place] for _, place in self._parts]
