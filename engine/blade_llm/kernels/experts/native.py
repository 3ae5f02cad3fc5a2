"""Experts on packed linear layers, computed by one call in C++ (``native.cpp``)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.experts.packed import LayerPair, Part
from blade_llm.kernels.linear import native as linear
from blade_llm.kernels.linear.native import NativeLinear
from blade_llm.kernels.linear.packed import Packer, Quantization
from blade_llm.kernels.native.functions import bind

CHUNK = 1024
"""Tokens computed at a time: what lies between the products takes memory for each expert that a token has."""


class _Experts(ctypes.Structure):
    """As ``Experts`` in ``native.cpp``."""

    _fields_ = (
        ("experts", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("total", ctypes.c_int64),
        ("gate_up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
    )


class NativeExperts:
    """Experts packed for the native kernels, bf16."""

    __slots__ = ("_arrays", "_hidden", "_inner", "_linears", "_struct", "address", "nbytes")

    def __init__(
        self,
        experts: Iterable[tuple[Tensor, Tensor]],
        quant: Quantization,
        deterministic: bool,
        packer: Packer,
        part: Part | None = None,
    ) -> None:
        def pack(weight: Tensor) -> NativeLinear:
            packed = packer(weight, None, quant, deterministic=deterministic)
            if not isinstance(packed, NativeLinear):
                raise TypeError(f"experts need native linear layers, not {type(packed).__name__}")
            return packed

        self._take([(pack(gate_up), pack(down)) for gate_up, down in experts], part)

    @classmethod
    def of_layers(cls, experts: Sequence[LayerPair], part: Part | None = None) -> NativeExperts | None:
        """Those that are packed already, perhaps quantised, each in its own form; None where not all are packed for
        these kernels, or are of several sizes, as groups of a rank's part with act-order may be."""
        pairs = [(up, down) for up, down in experts if isinstance(up, NativeLinear) and isinstance(down, NativeLinear)]
        sizes = {(up.outputs, up.inputs, up.columns, down.outputs, down.inputs, down.columns) for up, down in pairs}
        if len(pairs) < len(experts) or len(sizes) > 1:
            return None
        made = cls.__new__(cls)
        made._take(pairs, part)
        return made

    def _take(self, pairs: list[tuple[NativeLinear, NativeLinear]], part: Part | None) -> None:
        self._linears = pairs  # kept alive for their addresses
        self._arrays = [torch.tensor([pair[part].address for pair in pairs]) for part in range(2)]
        self._hidden, self._inner = pairs[0][0].inputs, pairs[0][1].inputs
        gate_up, down = (array.data_ptr() for array in self._arrays)
        first, total = (0, len(pairs)) if part is None else (part.first, part.total)
        self._struct = _Experts(len(pairs), self._hidden, self._inner, first, total, gate_up, down)
        self.address = ctypes.addressof(self._struct)
        self.nbytes = sum(packed.nbytes for pair in pairs for packed in pair)

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        if x.dtype != torch.bfloat16 or x.shape[1] != self._hidden:
            raise ValueError(f"expected [tokens, {self._hidden}] bf16, got {list(x.shape)} {x.dtype}")
        if x.stride(1) != 1:
            x = x.contiguous()
        ids, weights = ids.contiguous(), weights.contiguous()
        tokens, top_k = ids.shape
        out = torch.empty((tokens, self._hidden), dtype=torch.bfloat16)
        pairs = min(tokens, CHUNK) * top_k
        sorted_x = torch.empty((pairs, self._hidden), dtype=torch.bfloat16)
        between = torch.empty((pairs, 3 * self._inner), dtype=torch.bfloat16)
        numbers = torch.empty(self._struct.experts + 1 + pairs, dtype=torch.int32)
        for start in range(0, tokens, CHUNK):
            some = min(CHUNK, tokens - start)
            wrong = _experts()(
                self.address,
                x.data_ptr() + start * x.stride(0) * 2,
                x.stride(0),
                ids.data_ptr() + start * top_k * 4,
                weights.data_ptr() + start * top_k * 4,
                some,
                top_k,
                numbers.data_ptr(),
                sorted_x.data_ptr(),
                between.data_ptr(),
                out.data_ptr() + start * self._hidden * 2,
            )
            if wrong:
                raise ValueError(f"expert ids must be 0 to {self._struct.total - 1}")
        return out


def can_pack(weight: Tensor) -> bool:
    """Whether these kernels take weights like ``weight`` on this CPU."""
    return weight.dtype == torch.bfloat16 and linear.is_available()


@cache
def _experts() -> Any:
    return bind("experts", "ppnppnnpppp", "i")
