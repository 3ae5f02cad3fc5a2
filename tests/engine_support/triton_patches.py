"""Triton's interpreter puts its own functions in the place of ``triton.language``'s for a launch, and looks for them
again at every call of a device function (Triton 3.9), which takes a third of the time: here they are found once, and
put there once a launch, in both modules that kernels and Triton's own functions see."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_EVERYWHERE = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
_patch_lang = interpreter._patch_lang
_builtins: dict[Any, list[tuple[str, Any]]] = {}
"""Of each module or class, by name; found while nothing is patched."""


def _patch_builtin(owner: Any, builder: Any, scope: Any) -> None:
    if owner not in _builtins:
        _builtins[owner] = [each for each in inspect.getmembers(owner) if tl.core.is_builtin(each[1])]
    for name, member in _builtins[owner]:
        interpreter._patch_attr(owner, name, member, builder, scope)


def _patch_once(fn: Any) -> Any:
    """For a launch all; within one nothing more."""
    return _patch_lang(_EVERYWHERE) if tl.core.is_builtin(tl.load) else interpreter._LangPatchScope()


def apply() -> None:
    """From now on, in this process."""
    assert tl.core.is_builtin(tl.load)
    assert tl.core.is_builtin(tl.core.load), "a kernel has run already"
    interpreter._patch_builtin = _patch_builtin
    interpreter._patch_lang = _patch_once
