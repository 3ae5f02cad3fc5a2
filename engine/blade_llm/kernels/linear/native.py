"""bf16 and quantised linear layers in C++, for AMX, AVX512-BF16 and AVX2; see ``layout.h`` for the packed form."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

from blade_llm.kernels import native
from blade_llm.kernels.linear.packed import Quantization
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.kernels.linear.torch import INT4_LEVELS
from blade_llm.kernels.native.memory import HugePageArena

KINDS: Final = {"none": 0, "int8": 1, "int4": 2}
PANEL: Final = 32
"""Outputs are packed in groups of this many; inputs, too."""

PREFETCH_DISTANCES: Final = (0, 256, 512, 1024, 2048, 8192)
"""Bytes; 0 leaves it to the CPU's own prefetchers."""

_arena = HugePageArena()


class _Weight(ctypes.Structure):
    """As ``Weight`` in ``layout.h``."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("fixed_order", ctypes.c_int32),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("records", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("levels", ctypes.c_void_p),
    )


class Parts(NamedTuple):
    """The tensors of a packed weight, row-major and aligned to 64 bytes; those that it does not need are empty."""

    records: Tensor
    """uint8, as ``layout.h`` says."""
    scales: Tensor
    """int8: [padded outputs] fp32."""
    bias: Tensor
    """[padded outputs] fp32."""


class NativeLinear:
    """A weight packed for the native kernels."""

    __slots__ = ("_multiply", "_weight", "address", "deterministic", "inputs", "kind", "nbytes", "outputs", "parts")

    def __init__(self, outputs: int, inputs: int, kind: int, deterministic: bool, parts: Parts) -> None:
        library = _functions()
        assert library is not None
        self.outputs, self.inputs, self.kind, self.deterministic = outputs, inputs, kind, deterministic
        self._weight = _Weight(kind, deterministic, outputs, inputs, levels=_levels().data_ptr())
        self.address = ctypes.addressof(self._weight)
        self._multiply = library.blade_linear
        self.nbytes = sum(tensor.nbytes for tensor in parts)
        self.place(parts)

    def place(self, parts: Parts) -> None:
        """Read the weight from another copy of its parts from now on."""
        self.parts = parts  # kept alive for their addresses
        self._weight.records = parts.records.data_ptr()
        self._weight.scales = parts.scales.data_ptr()
        self._weight.bias = parts.bias.data_ptr() if parts.bias.numel() else None

    def pack_rows(self, first: int, count: int, source: int) -> None:
        """Pack ``count`` outputs from address ``source`` into the records from output ``first`` on, the first of its
        panel."""
        library = _functions()
        assert library is not None
        record_bytes = int(library.blade_linear_record_bytes(self.kind))
        records = first // PANEL * -(-self.inputs // PANEL) * record_bytes
        part = _Weight(
            self.kind,
            self.deterministic,
            count,
            self.inputs,
            self.parts.records.data_ptr() + records,
            self.parts.scales.data_ptr() + first * self.parts.scales.itemsize,
            levels=_levels().data_ptr(),
        )
        library.blade_linear_pack(ctypes.addressof(part), source)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.inputs or x.dtype != torch.bfloat16:
            raise ValueError(f"expected [tokens, {self.inputs}] bf16, got {list(x.shape)} {x.dtype}")
        if x.stride(1) != 1:
            x = x.contiguous()
        rows = x.shape[0]
        y = torch.empty((rows, self.outputs), dtype=torch.bfloat16)
        self._multiply(self.address, x.data_ptr(), rows, x.stride(0), y.data_ptr())
        return y


def is_available() -> bool:
    """Whether this CPU has the kernels."""
    return _functions() is not None


def pack(weight: Tensor, bias: Tensor | None, quant: Quantization, deterministic: bool) -> NativeLinear | None:
    """As :func:`blade_llm.kernels.linear.pack`; None where these kernels cannot take it."""
    if weight.dtype != torch.bfloat16 or _functions() is None:
        return None
    return _pack([weight], bias, KINDS[quant], deterministic, _arena)


def pack_stacked(
    weights: Sequence[Tensor], bias: Tensor | None, quant: Quantization, deterministic: bool
) -> NativeLinear | None:
    """As :func:`pack` of ``weights`` one above the other, which are not copied for it; None where their rows do not
    fill panels."""
    if _functions() is None or any(each.dtype != torch.bfloat16 or len(each) % PANEL for each in weights):
        return None
    return _pack(weights, bias, KINDS[quant], deterministic, _arena)


def pack_quantized(weight: QuantizedWeight, bias: Tensor | None, deterministic: bool) -> NativeLinear | None:
    """As :func:`blade_llm.kernels.linear.pack_quantized`; None where these kernels cannot take it."""
    return None


def _pack(
    weights: Sequence[Tensor], bias: Tensor | None, kind: int, deterministic: bool, arena: HugePageArena
) -> NativeLinear:
    """``weights``: [out, in] bf16, all but the last of whole panels; ``bias``: [all out]; ``arena``: for the result."""
    library = _functions()
    assert library is not None
    outputs, inputs = sum(map(len, weights)), weights[0].shape[1]
    panels, steps = -(-outputs // PANEL), -(-inputs // PANEL)
    records = arena.empty(panels * steps * int(library.blade_linear_record_bytes(kind)))
    scales = torch.zeros(panels * PANEL if kind == KINDS["int8"] else 0)
    padded_bias = torch.zeros(panels * PANEL if bias is not None else 0)
    if bias is not None:
        padded_bias[:outputs] = bias
    linear = NativeLinear(outputs, inputs, kind, deterministic, Parts(records, scales, padded_bias))
    first = 0
    for weight in weights:
        source = weight.contiguous()
        linear.pack_rows(first, len(weight), source.data_ptr())
        first += len(weight)
    return linear


def measure_prefetch(quant: Quantization, rounds: int = 12) -> int:
    """The distance of :data:`PREFETCH_DISTANCES` with which a single row is multiplied fastest.

    The distances take turns and the fastest of ``rounds`` counts: a quarter of a second in all. The weight is larger
    than a core's share of the caches.
    """
    functions = _functions()
    assert functions is not None
    weight = torch.zeros(32_768 if quant == "none" else 65_536, 1024, dtype=torch.bfloat16)
    layer = _pack([weight], None, KINDS[quant], False, HugePageArena())  # goes with it
    row = torch.zeros(1, 1024, dtype=torch.bfloat16)
    best = dict.fromkeys(PREFETCH_DISTANCES, float("inf"))
    before = functions.blade_linear_set_prefetch(0)
    for _ in range(rounds):
        for distance in best:
            functions.blade_linear_set_prefetch(distance)
            start = time.perf_counter()
            layer(row)
            best[distance] = min(best[distance], time.perf_counter() - start)
    functions.blade_linear_set_prefetch(before)
    return min(best, key=best.__getitem__)


def set_prefetch(distance: int) -> None:
    """Fetch weights ``distance`` bytes ahead."""
    functions = _functions()
    assert functions is not None
    functions.blade_linear_set_prefetch(distance)


def prefetch_matters(quant: Quantization) -> bool:
    """Whether the kernels in use fetch at a distance that is measured: all do but the one for AMX and bf16."""
    return _functions() is not None and (quant != "none" or native.isa() != "amx")


@cache
def _functions() -> ctypes.CDLL | None:
    library = native.library()
    if library is None or not library.blade_linear_supported():
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.blade_linear_record_bytes.argtypes = (ctypes.c_int,)
    library.blade_linear_record_bytes.restype = number
    library.blade_linear_pack.argtypes = (pointer, pointer)
    library.blade_linear_pack.restype = None
    library.blade_linear.argtypes = (pointer, pointer, number, number, pointer)
    library.blade_linear.restype = None
    library.blade_linear_set_prefetch.argtypes = (number,)
    library.blade_linear_set_prefetch.restype = number
    return library


@cache
def _levels() -> Tensor:
    return torch.tensor(INT4_LEVELS * 2).bfloat16()
