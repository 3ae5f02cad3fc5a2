"""Counters that the worker processes of one router share: limits and counts must hold for all of them together.

Python has no atomic addition, so each counter has one writer: each worker has a column of its own, and a sum reads all
columns. A counter is 8 bytes at an 8-byte boundary, which the machines we run on read and write in one piece. Rows are
allocated in a table, under a lock of the file, when they are first opened; after that no lock is taken.

A single process uses the same code over private memory.
"""

import fcntl
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

SIZE = 4 << 20
"""Bytes of the memory when there is no file."""
WORD = 8
MAGIC = 0x31_65_64_61_6C_62
REGIONS = 16
_HEADER = 2
"""Words before the directory: the magic number, and the start of free memory."""
_ENTRY = 4
"""Words of a directory entry: name, offset, rows, width."""
_DIRECTORY = _HEADER + REGIONS * _ENTRY


class SharedMemory:
    """The memory of one worker and its siblings.

    Args:
        fd: descriptor of the inherited file that all workers map; zeros at first. None: this process is alone.
        worker: this process's number, from 0. A restarted one finds its column zeroed: what the dead process had in
            flight is over.
        workers: the number of workers; equal for all of them.

    Raises:
        ValueError: ``worker`` is none of ``workers``, or the file is no such memory.
    """

    def __init__(self, fd: int | None = None, worker: int = 0, workers: int = 1) -> None:
        if not 0 <= worker < workers:
            raise ValueError(f"worker {worker} of {workers}")
        self.worker = worker
        self.workers = workers
        self._fd = fd
        self._map = mmap.mmap(-1, SIZE) if fd is None else mmap.mmap(fd, os.fstat(fd).st_size)
        self.words = memoryview(self._map).cast("q")
        with self.locked():
            if not self.words[0]:
                self.words[0], self.words[1] = MAGIC, _DIRECTORY
            if self.words[0] != MAGIC:
                raise ValueError("the inherited memory holds something else")
            for entry in self._entries():
                _, offset, rows, width = self.words[entry : entry + _ENTRY]
                if offset:
                    self._zero(offset + rows + worker * rows * width, rows * width)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the tables against the other workers. Blocks, but nobody holds this for longer than a copy."""
        if self._fd is None:
            yield
            return
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def region(self, name: str, rows: int, width: int) -> int:
        """The offset of a table, allocated at first use: a word for each row's name, then a column per worker.

        Raises:
            ValueError: no room left, or another worker allocated it in another size.
        """
        wanted = digest(name)
        size = rows + self.workers * rows * width
        with self.locked():
            for entry in self._entries():
                found, offset, *shape = self.words[entry : entry + _ENTRY]
                if not offset:
                    break
                if found == wanted:
                    if shape != [rows, width]:
                        raise ValueError(f"{name}: the other workers have {shape} rows and words, not {[rows, width]}")
                    return offset
            else:
                raise ValueError(f"{name}: more than {REGIONS} tables")
            offset = self.words[1]
            if offset + size > len(self.words):
                raise ValueError(
                    f"{name}: {rows} rows for {self.workers} workers need {size * WORD} bytes, and "
                    f"{(len(self.words) - offset) * WORD} are left"
                )
            self.words[1] = offset + size
            for index, value in enumerate((wanted, offset, rows, width)):
                self.words[entry + index] = value
            return offset

    def _entries(self) -> range:
        return range(_HEADER, _DIRECTORY, _ENTRY)

    def _zero(self, start: int, count: int) -> None:
        self.words[start : start + count] = memoryview(bytes(count * WORD)).cast("q")


class SharedColumns:
    """A table with named rows and one column per worker; each cell has ``width`` integers.

    Raises:
        ValueError: the memory has no room for it.
    """

    def __init__(self, memory: SharedMemory, name: str, rows: int, width: int = 1) -> None:
        self.rows = rows
        self.width = width
        self._memory = memory
        # One integer more than asked for: whether this worker uses the row.
        self._stride = width + 1
        self._offset = memory.region(name, rows, self._stride)
        self._names: dict[int, int] = {}

    def open(self, name: str) -> "SharedRow":
        """Open the row of that name, the same one for every worker. To be closed when it is no longer needed.

        Raises:
            RowsExhausted: all rows are in use.
        """
        memory, wanted = self._memory, digest(name)
        index = self._names.get(wanted)
        if index is not None and self._used(index, memory.worker):
            raise ValueError(f"row {name} is open already")
        with memory.locked():
            index = self._find(wanted)
            memory.words[self._offset + index] = wanted
            memory.words[self._cell(index, memory.worker)] = 1
        self._names[wanted] = index
        return SharedRow(self, wanted, index)

    def cells(self, index: int) -> list[memoryview]:
        """The numbers of a row, one cell per worker. Only this worker's may be written."""
        starts = (self._cell(index, worker) + 1 for worker in range(self._memory.workers))
        return [self._memory.words[start : start + self.width] for start in starts]

    @property
    def worker(self) -> int:
        return self._memory.worker

    def release(self, name: int, index: int) -> None:
        self._memory._zero(self._cell(index, self.worker), self._stride)
        self._names.pop(name, None)

    def _find(self, wanted: int) -> int:
        """The row of that name, else an unused one."""
        names = self._memory.words[self._offset : self._offset + self.rows].tolist()
        if wanted in names:
            return names.index(wanted)
        for index, name in enumerate(names):
            if not name or not any(self._used(index, worker) for worker in range(self._memory.workers)):
                return index
        raise RowsExhausted(f"all {self.rows} rows are in use")

    def _used(self, index: int, worker: int) -> bool:
        return self._memory.words[self._cell(index, worker)] != 0

    def _cell(self, index: int, worker: int) -> int:
        return self._offset + self.rows + (worker * self.rows + index) * self._stride


class SharedRow:
    """One row: this worker's numbers (``own``), and those of all workers (``cells``, its own among them)."""

    __slots__ = ("_columns", "_index", "_name", "cells", "own")

    def __init__(self, columns: SharedColumns, name: int, index: int) -> None:
        self._columns = columns
        self._name = name
        self._index = index
        self.cells = columns.cells(index)
        self.own = self.cells[columns.worker]

    def add(self, amount: int, place: int = 0) -> None:
        """Add to this worker's number."""
        self.own[place] += amount

    def total(self, place: int = 0) -> int:
        """The sum over all workers."""
        return sum(cell[place] for cell in self.cells)

    def close(self) -> None:
        """Release the row: this worker's numbers become 0."""
        self._columns.release(self._name, self._index)


class PrivateRow:
    """A private row, for a process without siblings or when no shared row was left."""

    __slots__ = ("cells", "own")

    def __init__(self, width: int = 1) -> None:
        self.own = memoryview(bytearray(width * WORD)).cast("q")
        self.cells = [self.own]

    def add(self, amount: int, place: int = 0) -> None:
        self.own[place] += amount

    def total(self, place: int = 0) -> int:
        return self.own[place]

    def close(self) -> None:
        pass


class RowsExhausted(Exception):
    """More names are in use than a table has rows."""


def digest(name: str) -> int:
    """The number that stands for a name in the tables, never 0."""
    (number,) = struct.unpack("q", hashlib.sha256(name.encode()).digest()[:WORD])
    return int(number) or 1
