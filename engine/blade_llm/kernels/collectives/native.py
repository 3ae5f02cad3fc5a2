"""Collectives in C++ (``native.cpp``)."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any, Final, NamedTuple, NoReturn

import torch
from torch import Tensor

from blade_llm.kernels.collectives import MAX_RANKS, CollectiveError, RankLostError
from blade_llm.kernels.native.functions import bind

LOST: Final = 1
"""Of ``Status`` in ``group.h``."""
DTYPES: Final = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""As ``DType`` in ``sum.h``."""


class NativeGroup:
    """A rank's place in a segment; calls come from one thread at a time, :meth:`abort` and :meth:`leave` from any."""

    __slots__ = ("_functions", "address", "completed", "size")

    def __init__(self, file: int, rank: int, size: int, timeout: float) -> None:
        """``file``: descriptor of a segment for ``size`` ranks, which may be closed then. ``timeout``: seconds to wait
        for the others in each collective. Raises :class:`CollectiveError`."""
        self._functions = _bound()
        self.size = size
        self.address = int(self._functions.join(file, rank, size, int(timeout * 1e9)))
        """Of the C++ group, valid for as long as the process lives."""
        self.completed = bool(self._functions.completed(self.address))
        """Whether all ranks have joined, this one as the last."""
        self._check(self._functions.status(self.address))

    def all_reduce(self, x: Tensor) -> Tensor:
        """See :class:`~blade_llm.parallel.group.RankGroup`. Raises :class:`CollectiveError`, of which
        :class:`RankLostError` is one."""
        dtype = DTYPES.get(x.dtype)
        if dtype is None or not x.is_contiguous() or x.device.type != "cpu":
            raise ValueError(f"expected contiguous fp32, bf16 or fp16 on CPU, got {x.dtype} {x.stride()} on {x.device}")
        self._check(self._functions.all_reduce(self.address, dtype, x.data_ptr(), x.numel()))
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """As :meth:`all_reduce`; of any type."""
        if not x.is_contiguous() or x.device.type != "cpu":
            raise ValueError(f"expected contiguous numbers on CPU, got {x.stride()} on {x.device}")
        width = x.shape[-1]
        out = torch.empty((*x.shape[:-1], self.size * width), dtype=x.dtype)
        self._check(
            self._functions.all_gather(self.address, x.data_ptr(), x.nbytes, width * x.itemsize, out.data_ptr())
        )
        return out

    def all_to_all(self, x: Tensor, own_rows: int) -> Tensor:
        """As :meth:`all_gather`; ``own_rows``: of ``x`` ([rows, width]), as many as this rank's share has."""
        if not x.is_contiguous() or x.device.type != "cpu":
            raise ValueError(f"expected contiguous numbers on CPU, got {x.stride()} on {x.device}")
        rows, width = x.shape
        out = torch.empty(own_rows, self.size * width, dtype=x.dtype)
        self._check(self._functions.all_to_all(self.address, x.data_ptr(), rows, width * x.itemsize, out.data_ptr()))
        return out

    def least(self, value: int) -> int:
        """As :meth:`all_reduce`; of 64 bits."""
        number = ctypes.c_int64(value)
        self._check(self._functions.least(self.address, ctypes.addressof(number)))
        return number.value

    def abort(self, lost_rank: int) -> None:
        """Collectives of all ranks raise :class:`RankLostError` from now on."""
        if not self._functions.abort(self.address, lost_rank):
            raise ValueError(f"there are ranks 0 to {self.size - 1}, not {lost_rank}")

    def leave(self) -> None:
        """The others' collectives raise :class:`RankLostError` from now on, this rank's :class:`CollectiveError`."""
        self._functions.leave(self.address)

    def _check(self, status: int) -> None:
        if status:
            raise_failure(self.address, status)


def raise_failure(address: int, status: int) -> NoReturn:
    """Raise what a call said with ``status``, other than 0, of the group at ``address``."""
    message = ctypes.string_at(_bound().message(address)).decode()
    raise (RankLostError if status == LOST else CollectiveError)(message)


def create_segment(file: int, size: int) -> None:
    """Make an empty file a segment for ``size`` ranks. Raises OSError."""
    if not 1 <= size <= MAX_RANKS:
        raise ValueError(f"1 to {MAX_RANKS} ranks can share memory, not {size}")
    _raise_errno(_bound().create(file, size))


def abort_segment(file: int, lost_rank: int) -> None:
    """As :meth:`NativeGroup.abort`, from a process that is no rank. Raises OSError."""
    _raise_errno(_bound().abort_segment(file, lost_rank))


class _Functions(NamedTuple):
    create: Any
    abort_segment: Any
    join: Any
    status: Any
    completed: Any
    message: Any
    all_reduce: Any
    all_gather: Any
    all_to_all: Any
    least: Any
    abort: Any
    leave: Any


@cache
def _bound() -> _Functions:
    return _Functions(
        create=bind("segment_create", "ii", "i"),
        abort_segment=bind("segment_abort", "ii", "i"),
        join=bind("group_join", "iiin", "p"),
        status=bind("group_status", "p", "i"),
        completed=bind("group_completed", "p", "i"),
        message=bind("group_message", "p", "p"),
        all_reduce=bind("group_all_reduce", "pipn", "i"),
        all_gather=bind("group_all_gather", "ppnnp", "i"),
        all_to_all=bind("group_all_to_all", "ppnnp", "i"),
        least=bind("group_least", "pp", "i"),
        abort=bind("group_abort", "pi", "i"),
        leave=bind("group_leave", "p"),
    )


def _raise_errno(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))
