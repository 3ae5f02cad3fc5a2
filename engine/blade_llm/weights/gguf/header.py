"""The lengths in the metadata of a GGUF file, checked against the file before anything believes them.

Layout: magic, version (u32), numbers of tensors and of fields (u64), then each field: key, type (u32), value. A string
is a length (u64) and its bytes, an array a type (u32), a length (u64) and its elements. Then each tensor: its name, the
number of its extents (u32), these (u64), its type (u32) and its offset (u64).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

MAX_ELEMENTS: Final = 1 << 22
"""Of one array: the largest vocabularies have a quarter of a million entries."""
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a number by its type."""
_STRING: Final = 8
_ARRAY: Final = 9


def check_header(file: Path) -> dict[str, int]:
    """The numbers of the tensors' types by name.

    Raises ``ValueError`` for an array or string that is longer than what is left of ``file``, and for arrays of arrays;
    ``OSError``.
    """
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Walk(data).tensors()


class _Walk:
    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._position = data, 4
        self._order = "<"
        if not self._number("I") & 0xFFFF:
            self._order = ">"  # the version is a small number in the file's own byte order

    def tensors(self) -> dict[str, int]:
        count, types = self._number("Q"), {}
        self._fields()
        for _ in range(count):
            length = self._number("Q")
            self._skip(length)
            name = self._data[self._position - length : self._position].decode("utf-8", "replace")
            self._skip(self._number("I") * 8)
            types[name] = self._number("I")
            self._skip(8)
        return types

    def _fields(self) -> None:
        for _ in range(self._number("Q")):
            self._skip(self._number("Q"))
            kind = self._number("I")
            count = 1
            if kind == _ARRAY:
                kind, count = self._number("I"), self._number("Q")
                if count > min(MAX_ELEMENTS, len(self._data) - self._position):
                    raise ValueError(f"an array of {count} elements")
            if kind == _STRING:
                for _ in range(count):
                    self._skip(self._number("Q"))
            elif kind in _SIZES:
                self._skip(count * _SIZES[kind])
            else:
                raise ValueError(f"a field of type {kind}")

    def _number(self, code: str) -> int:
        begin = self._position
        self._skip(struct.calcsize(code))
        number: int = struct.unpack_from(self._order + code, self._data, begin)[0]
        return number

    def _skip(self, count: int) -> None:
        if count > len(self._data) - self._position:
            raise ValueError("the metadata reaches beyond the end of the file")
        self._position += count
