"""The interpreter's bf16 put right: it multiplies matrices of bf16 as if their bits were integers, and loses the carry
when rounding up to a power of two (Triton 3.9). Import it after :mod:`engine_support.triton_interpreter`."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from engine_support.triton_interpreter import COMPILED
from triton.runtime import interpreter

_create_dot = interpreter.InterpreterBuilder.create_dot
_convert_float = interpreter._convert_float


def _as_float32(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    data = (handle.data.astype(np.uint32) << 16).view(np.float32)
    return interpreter.TensorHandle(data, tl.float32)


def _dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
    return _create_dot(self, _as_float32(a), _as_float32(b), *rest)


def _convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
    """fp32 to bf16 to nearest, ties to even; other conversions as they are. Finite numbers only."""
    if source != tl.float32 or target != tl.bfloat16:
        return _convert_float(data, source, target, rounding)
    bits = data.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).reshape(data.shape)


if not COMPILED:
    interpreter.InterpreterBuilder.create_dot = _dot
    interpreter._convert_float = _convert
