"""A mixture-of-experts layer in one call (``native.cpp``): its router, the routing and the experts."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from blade_llm.kernels.experts.native import NativeExperts
from blade_llm.kernels.experts.packed import MixtureWeights
from blade_llm.kernels.linear.native import NativeLinear
from blade_llm.kernels.native.functions import bind

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


class _Mixture(ctypes.Structure):
    """``Mixture`` in native.cpp."""

    _fields_ = (
        *((name, _POINTER) for name in ("experts", "router", "bias")),
        *((name, _SIZE) for name in ("top_k", "sigmoid", "renormalize", "groups", "top_groups")),
        ("scale", ctypes.c_float),
    )


class NativeMixture:
    """A layer as the C++ code reads it."""

    __slots__ = ("_struct", "_weights", "address")

    def __init__(self, weights: MixtureWeights) -> None:
        """``weights``: such as are served."""
        assert isinstance(weights.experts, NativeExperts)
        assert isinstance(weights.router, NativeLinear)
        routing, bias = weights.routing, weights.correction_bias
        self._weights = weights  # for its addresses
        self._struct = _Mixture(
            weights.experts.address,
            weights.router.address,
            None if bias is None else bias.data_ptr(),
            *(routing.top_k, routing.scoring == "sigmoid", routing.renormalize),
            *(routing.num_groups, routing.top_groups, routing.scale),
        )
        self.address = ctypes.addressof(self._struct)

    def scratch_bytes(self, tokens: int) -> int:
        """What the call needs for so many tokens."""
        return int(_scratch()(self.address, tokens))


def serves(weights: MixtureWeights) -> bool:
    """Whether the layer can be computed in one call: on a CPU with native operators, everything packed for them."""
    bias = weights.correction_bias
    if bias is not None and (bias.dtype != torch.float32 or not bias.is_contiguous()):
        return False
    return isinstance(weights.router, NativeLinear) and isinstance(weights.experts, NativeExperts)


@cache
def _scratch() -> Any:
    return bind("mixture_scratch", "pn", "n")
