"""The file of packed weights: data first, a directory of them at the end, so that it is written in one pass.

data, each piece aligned to a page | directory (msgpack) | sha256 of it | its offset (8 bytes) | magic (8 bytes)
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import mmap
import os
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch import Tensor

from blade_llm.kernels.linear.native import Form

MAGIC: Final = b"BLADEPW1"
_TAIL: Final = 32 + 8 + len(MAGIC)
_MADV_POPULATE_READ: Final = 22

Span = tuple[int, int]
"""First byte in the file, and the number of bytes."""


class StoredLinear(msgspec.Struct, frozen=True):
    """A linear layer: the names its weight and bias were made of, and its parts."""

    weight: tuple[str, ...]
    bias: tuple[str, ...]
    form: Form
    deterministic: bool
    outputs: int
    inputs: int
    records: Span
    scales: Span
    bias_values: Span
    order: Span


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor that is not packed, in the type it is computed in."""

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    span: Span


class Directory(msgspec.Struct, frozen=True):
    """What a file holds."""

    linears: tuple[StoredLinear, ...]
    tensors: tuple[StoredTensor, ...]
    elsewhere: tuple[tuple[str, ...], ...]
    """Tensors that the model needs besides, by their names: the model's own files have them as they are computed in."""


class PackedFile:
    """A complete file, mapped: its pages are those of the system's cache, shared with every other process.

    The mapping has a descriptor of its own, and with it a shared lock for as long as a tensor of the file is alive.
    """

    def __init__(self, path: Path) -> None:
        """Raises ``OSError``, and ``ValueError`` for a file that is not whole, or not one of ours."""
        self.path = path
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            status = os.fstat(descriptor)
            if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o002:
                raise ValueError(f"{path} belongs to another user, or all may write to it")
            self.directory, self._end = _read_directory(descriptor, status.st_size)
            with contextlib.suppress(OSError):  # its writer still holds it, or the file system knows no locks
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._data = _map(descriptor, self._end)
        finally:
            os.close(descriptor)

    def piece(self, span: Span) -> Tensor:
        """[bytes] uint8."""
        return self._data[span[0] : span[0] + span[1]]

    def tensor(self, stored: StoredTensor) -> Tensor:
        """The tensor itself, not a copy."""
        return self.piece(stored.span).view(getattr(torch, stored.dtype)).view(stored.shape)


class PackedWriter:
    """Writes one file; what was added is read from it at once."""

    def __init__(self, descriptor: int, capacity: int) -> None:
        """``descriptor``: of an empty file, closed by :meth:`close`; ``capacity``: bytes of data at most.

        Raises ``OSError``.
        """
        self._descriptor = descriptor
        self._position = 0
        self._capacity = capacity
        os.ftruncate(descriptor, capacity)  # a hole, so that it can be mapped before it is written
        self._data = _map(descriptor, capacity, populate=False)

    def add(self, tensor: Tensor) -> tuple[Span, Tensor]:
        """Write ``tensor``; where, and the same in the file. Raises ``OSError``."""
        begin, count = self._position, tensor.nbytes
        if begin + count > self._capacity:
            raise OSError("more packed weights than expected")
        if not count:
            return (begin, 0), tensor
        write_all(self._descriptor, tensor.contiguous().view(-1).view(torch.uint8).numpy(), begin)
        self._position = -(-(begin + count) // mmap.PAGESIZE) * mmap.PAGESIZE
        piece = self._data[begin : begin + count]
        _populate(piece)
        return (begin, count), piece.view(tensor.dtype).view(tensor.shape)

    def finish(self, directory: Directory) -> None:
        """Write the directory; the file is complete once this returns, and on the disk. Raises ``OSError``."""
        content = msgspec.msgpack.encode(directory)
        tail = hashlib.sha256(content).digest() + self._position.to_bytes(8, "little") + MAGIC
        os.ftruncate(self._descriptor, self._position)
        write_all(self._descriptor, content + tail, self._position)
        os.fsync(self._descriptor)
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)  # from now on a file like any that is read

    def close(self) -> None:
        """Close the file; what was added stays mapped, and locked for as long."""
        os.close(self._descriptor)


def write_all(descriptor: int, data: object, offset: int) -> None:
    """Write ``data`` at ``offset``, in as many calls as it takes."""
    view = memoryview(data).cast("B")  # type: ignore[arg-type]
    while len(view):
        count = os.pwrite(descriptor, view[: 1 << 30], offset)
        view, offset = view[count:], offset + count


def try_lock(descriptor: int) -> bool:
    """Lock the file of ``descriptor`` for this process unless another one has; ended by closing it and its mappings."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_directory(descriptor: int, size: int) -> tuple[Directory, int]:
    tail = os.pread(descriptor, _TAIL, max(0, size - _TAIL))
    begin = int.from_bytes(tail[32:40], "little")
    if len(tail) < _TAIL or tail[40:] != MAGIC or begin > size - _TAIL:
        raise ValueError("no packed weights, or not all of them")
    content = os.pread(descriptor, size - _TAIL - begin, begin)
    if hashlib.sha256(content).digest() != tail[:32]:
        raise ValueError("the directory of packed weights is damaged")
    directory = msgspec.msgpack.decode(content, type=Directory)
    spans = [span for each in directory.linears for span in (each.records, each.scales, each.bias_values, each.order)]
    for first, count in [*spans, *(each.span for each in directory.tensors)]:
        if first < 0 or count < 0 or first % mmap.PAGESIZE or first + count > begin:
            raise ValueError("the directory of packed weights points beyond them")
    return directory, begin


def _map(descriptor: int, size: int, *, populate: bool = True) -> Tensor:
    # Private, so that nothing here can ever change the file; pages that are only read are shared nevertheless.
    whole = torch.frombuffer(mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE), dtype=torch.uint8)
    if populate:
        _populate(whole)
    return whole


def _populate(piece: Tensor) -> None:
    """Enter the pages of ``piece`` into this process's table at once, faster than at each first access."""
    start = piece.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    length = piece.data_ptr() + piece.nbytes - start
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_POPULATE_READ)
