"""What Triton's interpreter (3.9) does for nothing, left out; it is most of the time of kernels' tests:

- It puts its own functions in the place of ``triton.language``'s for a launch, and looks for them all again at every
  call of a device function. Here they are found once, and put there once a launch, in both modules that kernels and
  Triton's own functions see.
- It computes whether a sum or a product of integers overflows, and looks at the outcome in debug mode alone.
- It lists all types to find the one of an array.
- It makes the type of every block, and the shape of every tensor, anew: there are few, which do not change. And it
  asks of types whose names say it whether they are equal, what two of them are computed in, and how two blocks of one
  shape are made to have one.
"""

from __future__ import annotations

import inspect
import math
from types import SimpleNamespace
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_EVERYWHERE = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
_patch_lang, _get_np_dtype = interpreter._patch_lang, interpreter._get_np_dtype
_unwrap_constexpr, _same_dtype = tl.core._unwrap_if_constexpr, tl.dtype.__eq__
_make_block_type = tl.block_type.__init__
_computation_type, _broadcast = TritonSemantic.computation_type_impl, TritonSemantic.broadcast_impl_value
_cast = TritonSemantic.cast
_builtins: dict[Any, list[tuple[str, Any]]] = {}
"""Of each module or class, by name; found while nothing is patched."""
_dtypes: dict[str, Any] = {}
"""numpy's for an element of Triton's."""
_blocks: dict[tuple[str, tuple[int, ...]], Any] = {}
"""Types of blocks, by the name of an element's and the shape."""
_shapes: dict[tuple[int, ...], Any] = {}
"""Of types, of which those of one shape have the same object."""
_tensor_shapes: dict[int, tuple[Any, Any]] = {}
"""Of tensors and how many elements that is, by the ``id`` of their type's shape (0: a scalar)."""
_computed_in: dict[tuple[object, ...], Any] = {}
_PLAIN = frozenset((tl.tensor, int, float, bool, str, type(None), tl.dtype, tl.pointer_type, tl.block_type))
"""What is never a constant's wrapper, nor has any inside."""


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


def _builtin_of_interpreter(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    function = getattr(member, "__wrapped__", member)  # what checks that there is a semantic

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = interpreter.interpreter_semantic
        return function(*args, **kwargs)

    scope.set_attr(owner, name, call)


def _unwrap(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    return value.value if kind is tl.constexpr else _unwrap_constexpr(value)


def _block_type(cls: Any, element_ty: Any, shape: Any) -> Any:
    sizes = tuple(map(_unwrap, _unwrap(shape)))
    key = element_ty.name, sizes
    if key not in _blocks:
        made = object.__new__(cls)
        _make_block_type(made, element_ty, shape)
        made.shape = _shapes.setdefault(sizes, made.shape)
        _blocks[key] = made
    return _blocks[key]


def _tensor(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    shape = type.shape if type.is_block() else ()
    key = id(shape) if shape else 0
    if key not in _tensor_shapes:
        _tensor_shapes[key] = tl.constexpr(math.prod(shape)), tl.tuple([tl.constexpr(size) for size in shape])
    self.numel, self.shape = _tensor_shapes[key]


def _equal(self: Any, other: Any) -> bool:
    return self is other or _same_dtype(self, other)


def _computation(self: Any, a: Any, a_is_scalar: bool, b: Any, b_is_scalar: bool, division: bool) -> Any:
    key = a.name, a_is_scalar, b.name, b_is_scalar, division
    if key not in _computed_in:
        _computed_in[key] = _computation_type(self, a, a_is_scalar, b, b_is_scalar, division)
    return _computed_in[key]


def _to_one_shape(self: Any, lhs: Any, rhs: Any) -> Any:
    if lhs.shape is rhs.shape:
        return lhs, rhs
    return _broadcast(self, lhs, rhs)


def _cast_if_need_be(self: Any, input: Any, dst_ty: Any, fp_downcast_rounding: Any = None) -> Any:
    return input if input.dtype is dst_ty.scalar else _cast(self, input, dst_ty, fp_downcast_rounding)


def apply() -> None:
    """From now on, in this process."""
    options = interpreter.interpreter_builder.options
    assert not options.debug, "overflows would be asserted"
    assert all(map(tl.core.is_builtin, (tl.load, tl.core.load))), "a kernel has run already"
    object.__setattr__(options, "sanitize_overflow", False)  # a frozen class
    interpreter._patch_builtin = _patch_builtin
    interpreter._patch_lang = _patch_once
    interpreter._patch_attr = _builtin_of_interpreter
    interpreter._get_np_dtype = _np_dtype
    tl.core._unwrap_if_constexpr = _unwrap
    tl.block_type.__new__ = _block_type
    tl.block_type.__init__ = lambda self, element_ty, shape: None
    tl.tensor.__init__ = _tensor
    tl.dtype.__eq__ = _equal
    TritonSemantic.computation_type_impl = _computation
    TritonSemantic.broadcast_impl_value = _to_one_shape
    TritonSemantic.cast = _cast_if_need_be
