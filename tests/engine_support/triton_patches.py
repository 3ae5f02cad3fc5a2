"""What Triton's interpreter (3.9) does for nothing, left out; it is most of the time of kernels' tests:

- It puts its own functions in the place of ``triton.language``'s for a launch, and looks for them all again at every
  call of a device function. Here they are found once, and put there once a launch, in both modules that kernels and
  Triton's own functions see.
- It computes whether a sum or a product of integers overflows, and looks at the outcome in debug mode alone.
- It lists all types to find the one of an array.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_EVERYWHERE = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
_patch_lang, _get_np_dtype = interpreter._patch_lang, interpreter._get_np_dtype
_builtins: dict[Any, list[tuple[str, Any]]] = {}
"""Of each module or class, by name; found while nothing is patched."""
_dtypes: dict[str, Any] = {}
"""numpy's for an element of Triton's."""


def _patch_builtin(owner: Any, builder: Any, scope: Any) -> None:
    if owner not in _builtins:
        _builtins[owner] = [each for each in inspect.getmembers(owner) if tl.core.is_builtin(each[1])]
    for name, member in _builtins[owner]:
        interpreter._patch_attr(owner, name, member, builder, scope)


def _patch_once(fn: Any) -> Any:
    """For a launch all; within one nothing more."""
    return _patch_lang(_EVERYWHERE) if tl.core.is_builtin(tl.load) else interpreter._LangPatchScope()


def _np_dtype(dtype: Any) -> Any:
    name = dtype.scalar.name
    if name not in _dtypes:
        _dtypes[name] = _get_np_dtype(dtype.scalar)
    return _dtypes[name]


def apply() -> None:
    """From now on, in this process."""
    options = interpreter.interpreter_builder.options
    assert not options.debug, "overflows would be asserted"
    assert all(map(tl.core.is_builtin, (tl.load, tl.core.load))), "a kernel has run already"
    object.__setattr__(options, "sanitize_overflow", False)  # a frozen class
    interpreter._patch_builtin = _patch_builtin
    interpreter._patch_lang = _patch_once
    interpreter._get_np_dtype = _np_dtype
