"""The bytes of tensors as a stream of chunks: parts of whole tensors, and whole tensors of the ranks' parts.

Files are memory-mapped and their pages given back after each tensor, so that a checkpoint of any size takes the memory
of a chunk or two.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blade_llm.weights.split.part import Part, Run
from blade_llm.weights.tensor_info import TensorInfo

CHUNK_BYTES: Final = 16 << 20
"""Most bytes of a chunk of several rows."""
Bytes = NDArray[np.uint8]


class TensorFiles:
    """Reads the bytes of tensors by their places in files."""

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}
        self._pickled: dict[Path, dict[str, Any]] = {}

    def read(self, tensor: TensorInfo) -> Bytes:
        """The tensor's bytes as they are in its file, [nbytes]; good until :meth:`release`."""
        if not tensor.nbytes:
            return np.empty(0, np.uint8)
        if tensor.file.suffix == ".bin":
            return self._unpickled(tensor)
        if tensor.file not in self._maps:
            with tensor.file.open("rb") as stream:
                self._maps[tensor.file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(self._maps[tensor.file], np.uint8, tensor.nbytes, tensor.begin)

    def release(self) -> None:
        """Give back the memory of what was read."""
        for each in self._maps.values():
            each.madvise(mmap.MADV_DONTNEED)

    def _unpickled(self, tensor: TensorInfo) -> Bytes:
        import torch  # seconds to import

        if tensor.file not in self._pickled:
            self._pickled = {tensor.file: torch.load(tensor.file, map_location="cpu", mmap=True, weights_only=True)}
        found = self._pickled[tensor.file][tensor.name].detach().contiguous()
        data: Bytes = found.reshape(-1).view(torch.uint8).numpy()
        return data


@dataclass(frozen=True, slots=True)
class Grid:
    """A tensor's bytes as [matrices, rows, columns, bytes of an element]."""

    matrices: int
    rows: int
    columns: int
    element: int

    @classmethod
    def of(cls, shape: tuple[int, ...], nbytes: int, *, indexed: bool) -> Grid:
        """``shape`` of a tensor of ``nbytes`` > 0; ``indexed`` as in :class:`Part`."""
        matrices, rest = (shape[0], shape[1:]) if indexed else (1, shape)
        rows, columns = (*rest[:2], 1, 1)[:2]
        return cls(matrices, rows, columns, nbytes // (matrices * rows * columns))

    def view(self, data: Bytes) -> Bytes:
        """``data`` in this form."""
        return data.reshape(self.matrices, self.rows, self.columns, self.element)


def flat_chunks(data: Bytes) -> Iterator[Bytes]:
    """All of ``data``."""
    for begin in range(0, len(data), CHUNK_BYTES):
        yield data[begin : begin + CHUNK_BYTES]


def part_chunks(data: Bytes, shape: tuple[int, ...], part: Part) -> Iterator[Bytes]:
    """The bytes of a part of a tensor, row-major; ``data``: of the whole tensor, of ``shape``."""
    if part.whole or not len(data):
        yield from flat_chunks(data)
        return
    grid = Grid.of(shape, len(data), indexed=part.indexed)
    columns = part.columns or ((0, grid.columns),)
    for matrix in grid.view(data):
        for rows in part.rows or ((0, grid.rows),):
            for begin, end in _steps(rows, sum(stop - start for start, stop in columns) * grid.element):
                blocks = [matrix[begin:end, start:stop] for start, stop in columns]
                chunk = blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)
                yield np.ascontiguousarray(chunk).reshape(-1)


def joined_chunks(pieces: Sequence[tuple[Part, Bytes]], shape: tuple[int, ...], nbytes: int) -> Iterator[Bytes]:
    """The bytes of a whole tensor of ``shape``, row-major; ``pieces``: parts that together are all of it."""
    whole = next((data for part, data in pieces if part.whole), None)
    if whole is not None or not nbytes:
        yield from flat_chunks(np.empty(0, np.uint8) if whole is None else whole)
        return
    grid = Grid.of(shape, nbytes, indexed=pieces[0][0].indexed)
    parts = [(part, Grid.of(part.shape(shape), len(data), indexed=part.indexed).view(data)) for part, data in pieces]
    for matrix in range(grid.matrices):
        for begin, end in _steps((0, grid.rows), grid.columns * grid.element):
            chunk = np.empty((end - begin, grid.columns, grid.element), np.uint8)
            for part, data in parts:
                _fill(chunk, begin, part, data[matrix], grid)
            yield chunk.reshape(-1)


def _fill(chunk: Bytes, begin: int, part: Part, data: Bytes, grid: Grid) -> None:
    """Copy what ``part`` has of the rows from ``begin`` on into ``chunk``."""
    for place, first, last in _places(part.rows, grid.rows):
        low, high = max(first, begin), min(last, begin + len(chunk))
        if low >= high:
            continue
        for column, left, right in _places(part.columns, grid.columns):
            own = data[place + low - first : place + high - first, column : column + right - left]
            chunk[low - begin : high - begin, left:right] = own


def _places(runs: Sequence[Run] | None, size: int) -> Iterator[tuple[int, int, int]]:
    """Each run, after its place in the part."""
    place = 0
    for start, stop in runs or ((0, size),):
        yield place, start, stop
        place += stop - start


def _steps(rows: Run, row_bytes: int) -> Iterator[Run]:
    """``rows`` in chunks."""
    step = max(1, CHUNK_BYTES // max(1, row_bytes))
    for begin in range(*rows, step):
        yield begin, min(begin + step, rows[1])
