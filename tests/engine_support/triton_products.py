"""The interpreter's products put right (Triton 3.9): it multiplies matrices of bf16, and subtracts them, as if their
bits were integers, and loses the carry when rounding up to a power of two; it knows no products of fp8; and a row's
sums depend on its place, as the CPU's BLAS likes it. Import it after :mod:`engine_support.triton_interpreter`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from engine_support import triton_patches
from engine_support.triton_interpreter import COMPILED
from triton.runtime import interpreter

_convert_float = interpreter._convert_float
_subtract = interpreter.InterpreterBuilder.create_fsub


def _as_float64(handle: Any) -> np.ndarray[Any, Any]:
    data = handle.data
    if handle.dtype.scalar == tl.bfloat16:
        data = (data.astype(np.uint32) << 16).view(np.float32)
    elif handle.dtype.scalar == tl.float8e4nv:
        data = torch.from_numpy(np.ascontiguousarray(data)).view(torch.float8_e4m3fn).float().numpy()
    return np.asarray(data, dtype=np.float64)


def _dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """The product in fp64, rounded once: whatever the order of its terms, the result is the same."""
    assert not {tl.float8e5, tl.float8e4b8} & {a.dtype.scalar, b.dtype.scalar}, "no kernel multiplies them"
    with np.errstate(invalid="ignore"):
        product = np.matmul(_as_float64(a), _as_float64(b)).astype(d.data.dtype)
    return interpreter.TensorHandle(product + d.data, d.dtype.scalar)


def _convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
    """fp32 to bf16 and e4m3 to nearest, ties to even; other conversions as they are. Finite numbers only."""
    if source == tl.float32 and target == tl.float8e4nv:
        return torch.from_numpy(np.ascontiguousarray(data)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    if source != tl.float32 or target != tl.bfloat16:
        return _convert_float(data, source, target, rounding)
    bits = data.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).reshape(data.shape)


def _difference(self: Any, a: Any, b: Any) -> Any:
    if a.dtype.scalar != tl.bfloat16:
        return _subtract(self, a, b)
    exact = (_as_float64(a) - _as_float64(b)).astype(np.float32)
    return interpreter.TensorHandle(_convert(exact, tl.float32, tl.bfloat16, None), tl.bfloat16)


if not COMPILED:
    triton_patches.apply()
    interpreter.InterpreterBuilder.create_dot = _dot
    interpreter.InterpreterBuilder.create_fsub = _difference
    interpreter._convert_float = _convert
