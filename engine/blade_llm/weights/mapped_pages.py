"""Gives back the memory of file pages that were read through a private mapping and are not needed for now.

What is dropped is only the copy in this process: the bytes are still in the file, mostly in the system's page cache,
and the next access to the address brings them back.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Final

_MADV_DONTNEED: Final = 4


class MappedPages:
    """Remembers what was read, for :meth:`release`."""

    def __init__(self, maps: Path = Path("/proc/self/maps")) -> None:
        self._maps = maps
        self._ranges: dict[Path, list[tuple[int, int]]] = {}
        self._noted: list[tuple[int, int]] = []

    def note(self, file: Path, address: int, nbytes: int) -> None:
        """Bytes at ``address`` were read from ``file``; ignored unless they lie in a private mapping of that file,
        for only there they can be had again."""
        if file not in self._ranges:
            self._ranges[file] = self._mapped(file)
        if any(start <= address and address + nbytes <= end for start, end in self._ranges[file]):
            self._noted.append((address, nbytes))

    def release(self) -> int:
        """Drop the pages noted since the last call; returns their bytes."""
        released = 0
        for address, nbytes in self._noted:
            start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
            length = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
            if length > 0 and _madvise(start, length, _MADV_DONTNEED) == 0:
                released += length
        self._noted.clear()
        return released

    def _mapped(self, file: Path) -> list[tuple[int, int]]:
        """Address ranges of the private mappings of ``file``."""
        name = str(file.resolve())
        ranges = []
        try:
            lines = self._maps.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        for line in lines:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5] == name and fields[1].endswith("p"):
                start, _, end = fields[0].partition("-")
                ranges.append((int(start, 16), int(end, 16)))
        return ranges


def _madvise(start: int, length: int, advice: int) -> int:
    try:
        function = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return -1
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return int(function(start, length, advice))
