"""How rows of the quantised KV cache are packed, as C++ (``kv_rows.h``) takes it."""

from __future__ import annotations

import ctypes
from functools import cache

from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kv_quant import METHOD_NUMBERS


class RowsStruct(ctypes.Structure):
    """``KvRows``."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("method", "groups", "bytes"))


class CacheRowsStruct(ctypes.Structure):
    """``CacheRows``."""

    _fields_ = (("keys", RowsStruct), ("values", RowsStruct))


@cache
def struct_of(rows: QuantizedRows | None) -> CacheRowsStruct:
    """Of the same rows always the same, which stays where it is; of rows that are not quantised all zero."""
    if rows is None:
        return CacheRowsStruct(RowsStruct(0, 1, 0), RowsStruct(0, 1, 0))
    return CacheRowsStruct(
        *(
            RowsStruct(METHOD_NUMBERS[each.quant.method], each.quant.groups, each.row_bytes)
            for each in (rows, rows.values)
        )
    )


def address_of(rows: QuantizedRows | None) -> int | None:
    """Where it is; None of rows that are not quantised."""
    return None if rows is None else ctypes.addressof(struct_of(rows))
