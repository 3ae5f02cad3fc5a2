"""Functions of the native library with their C types, bound once: a call then costs about a microsecond."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from blade_llm.kernels.native import library

_TYPES: dict[str, Any] = {"i": ctypes.c_int, "n": ctypes.c_int64, "f": ctypes.c_float, "p": ctypes.c_void_p}

IS_BF16 = {torch.float32: 0, torch.bfloat16: 1}
"""The element types the native operators know, and the codes they take for them."""


def bind(name: str, arguments: str, returns: str = "") -> Callable[..., Any]:
    """The function ``blade_<name>``; one letter an argument: i(nt), n(umber of 64 bits), f(loat), p(ointer)."""
    loaded = library()
    assert loaded is not None, "native operators are called only where backend_of() says so"
    function = loaded[f"blade_{name}"]  # an object of its own, unlike the attribute
    function.argtypes = [_TYPES[letter] for letter in arguments]
    function.restype = _TYPES[returns] if returns else None
    return function
