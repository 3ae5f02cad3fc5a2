"""Memory in huge pages for weights: with 4 KiB pages a decode step waits for address translation, and reads a
fifth less per second."""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
CHUNK_BYTES = 64 << 20
ALIGNMENT = 64


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


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


def give_back(tensor: Tensor) -> None:
    """Give the pages of a contiguous CPU tensor from :class:`HugePageArena` back to the system: it is all zeros then,
    and takes memory again as it is written.

    Raises:
        OSError: the system refuses.
    """
    flat = tensor.view(-1).view(torch.uint8)
    head = -flat.data_ptr() % mmap.PAGESIZE
    size = max(0, (flat.numel() - head) // mmap.PAGESIZE * mmap.PAGESIZE)
    flat[:head].zero_()  # pages that others have a part of
    flat[head + size :].zero_()
    if size and _LIBC.madvise(flat.data_ptr() + head, size, mmap.MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), "madvise")
