"""What adapters add, in C++ (``native.cpp``): one call a layer, whatever the number of adapters."""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
from torch import Tensor

from blade_llm.kernels.lora.factors import AdapterBatch, Factors, FactorTable
from blade_llm.kernels.native import isa
from blade_llm.kernels.native.functions import IS_BF16, bind

MOST_ROWS: Final = 256
"""Tokens an adapter, on average, from which two matrix products in torch are faster with AMX."""
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


class _Slice(ctypes.Structure):
    """``Slice`` in native.cpp."""

    _fields_ = (*((name, _SIZE) for name in ("first_output", "outputs", "first_rank", "rank")), ("b", _POINTER))


class _Factors(ctypes.Structure):
    """``Factors`` in native.cpp."""

    _fields_ = (("is_bf16", _SIZE), ("rank", _SIZE), ("a", _POINTER), ("slices", _SIZE), ("slice", _POINTER))


class _Batch(ctypes.Structure):
    """``Batch`` in native.cpp."""

    _fields_ = (("count", _SIZE), ("rows", _POINTER), ("slots", _POINTER))


class NativeTable:
    """The addresses of one layer's matrices by adapter slot."""

    __slots__ = ("_kept", "_pointers", "address", "served")

    def __init__(self, slots: int) -> None:
        self._pointers = (_POINTER * slots)()
        self._kept: list[Any] = [None] * slots
        self.address = ctypes.addressof(self._pointers)
        self.served = [True] * slots
        """Whether the kernel knows the type of the slot's matrices."""

    def put(self, slot: int, factors: Factors | None) -> None:
        """As :meth:`FactorTable.put`."""
        if factors is None:
            self._pointers[slot], self._kept[slot], self.served[slot] = None, None, True
            return
        self.served[slot] = factors.a.dtype in IS_BF16
        slices = (_Slice * len(factors.slices))(
            *(_Slice(s.first_output, s.b.shape[1], s.first_rank, s.b.shape[0], s.b.data_ptr()) for s in factors.slices)
        )
        struct = _Factors(
            IS_BF16.get(factors.a.dtype, 0),
            len(factors.a),
            factors.a.data_ptr(),
            len(slices),
            ctypes.addressof(slices),
        )
        self._kept[slot] = factors, slices, struct
        self._pointers[slot] = ctypes.addressof(struct)


def use_native(table: FactorTable) -> None:
    """Have the kernel compute ``table``, on CPU with the native library."""
    table.native = NativeTable(len(table.factors))
    for slot, factors in enumerate(table.factors):
        table.native.put(slot, factors)


def serves(x: Tensor, y: Tensor, table: NativeTable, batch: AdapterBatch) -> bool:
    """Whether the kernel is to compute this: not too many tokens of each adapter, all in fp32 or bf16."""
    return x.dtype in IS_BF16 and x.stride(1) == 1 and y.is_contiguous() and serves_batch(table, batch)


def serves_batch(table: NativeTable, batch: AdapterBatch) -> bool:
    """Whether it is to compute these tokens of these adapters."""
    few = batch.starts[-1] <= MOST_ROWS * len(batch.slots) or isa() != "amx"
    return few and all(table.served[slot] for slot in batch.slots)


def batch_address(batch: AdapterBatch) -> int:
    """Of the batch as the kernel reads it; it lives as long as ``batch``."""
    if not batch.address:
        lengths = [end - begin for begin, end in pairwise(batch.starts)]
        slots = np.repeat(np.array(batch.slots, dtype=np.int64), lengths)
        rows = batch.rows.contiguous()
        struct = _Batch(len(rows), rows.data_ptr(), slots.ctypes.data)
        batch.kept = rows, slots, struct
        batch.address = ctypes.addressof(struct)
    return batch.address


def add_lora(x: Tensor, y: Tensor, table: NativeTable, batch: AdapterBatch) -> None:
    """As :func:`blade_llm.kernels.lora.add_lora`."""
    _lora()(
        table.address,
        batch_address(batch),
        IS_BF16[x.dtype],
        x.data_ptr(),
        x.shape[1],
        x.stride(0),
        y.data_ptr(),
        y.shape[1],
    )


@cache
def _lora() -> Any:
    return bind("lora", "ppipnnpn")
