"""Memory in huge pages for weights: with 4 KiB pages a decode step waits for address translation, and reads a
fifth less per second."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
CHUNK_BYTES = 64 << 20
ALIGNMENT = 64


class HugePageArena:
    """Hands out pieces of large anonymous mappings; a mapping is freed with the last tensor in it.

    Pieces are packed one after another, because a huge page each would waste half of it on average. Memory that is not
    handed out yet is not touched, so it costs nothing.
    """

    def __init__(self) -> None:
        self._chunk: Tensor | None = None
        self._used = 0

    def empty(self, nbytes: int) -> Tensor:
        """[nbytes] uint8, aligned to a cache line."""
        if self._chunk is None or self._used + nbytes > self._chunk.numel():
            self._chunk = huge_pages(max(nbytes, CHUNK_BYTES))
            self._used = 0
        piece = self._chunk[self._used : self._used + nbytes]
        self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return piece


def huge_pages(nbytes: int) -> Tensor:
    """[nbytes] uint8 of zeros in a mapping of its own, which goes back to the system with the tensor."""
    mapping = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, AttributeError):
        pass  # a kernel without them: slower, not wrong
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE
    return whole[start : start + nbytes]
