"""bf16 and quantised linear layers in C++, for AMX, AVX512-BF16 and AVX2; see ``layout.h`` for the packed form."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from functools import cache
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from blade_llm.kernels import native
from blade_llm.kernels.linear.activations import Activations
from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.packed import Quantization
from blade_llm.kernels.linear.quantized import MAX_BITS, QuantizedWeight
from blade_llm.kernels.linear.torch import INT4_LEVELS
from blade_llm.kernels.native.memory import HugePageArena

Kind = Literal[Quantization, "affine4", "affine8", "float8"]
KINDS: Final[dict[Kind, int]] = {"none": 0, "int8": 1, "int4": 2, "affine4": 3, "affine8": 4, "w8a8": 5, "float8": 6}
"""As in ``layout.h``."""
MIDDLES: Final[dict[Kind, int]] = {"affine4": 8, "affine8": 128, "w8a8": 128}
"""The integer that stands for zero where a weight has no zero points."""
SCALE_TYPES: Final = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
ROUNDINGS: Final = {"int8": 1, "fp8": 2}
"""Of activations."""
BYTE_INPUTS: Final = 65536
"""Of w8a8: with more a sum could overflow, 255 * 128 each."""
PANEL: Final = 32
"""Outputs are packed in groups of this many; inputs, too."""

PREFETCH_DISTANCES: Final = (0, 256, 512, 1024, 2048, 8192)
"""Bytes; 0 leaves it to the CPU's own prefetchers."""

_arena = HugePageArena()
_NO_ORDER: Final = torch.empty(0, dtype=torch.int32)
_kinds: set[Kind] = set()
"""What this process has packed, or read packed."""


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
        ("group_steps", ctypes.c_int64),
        ("scale_type", ctypes.c_int32),
        ("has_zeros", ctypes.c_int32),
        ("order", ctypes.c_void_p),
        ("rounding", ctypes.c_int32),
        ("input_scale", ctypes.c_float),
        ("input_steps", ctypes.c_int64),
    )


class _Integers(ctypes.Structure):
    """As ``Integers`` in ``pack_affine.h``."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
        ("shift", ctypes.c_int32),
    )


class Form(NamedTuple):
    """What the bytes of a packed weight mean."""

    kind: Kind
    group_steps: int = 0
    """Times 32 inputs share a scale, where that is stored beside them; the last group may have fewer."""
    scale_type: int = 0
    """Of :data:`SCALE_TYPES`, for affine kinds."""
    has_zeros: bool = False
    rounding: int = 0
    """Of activations, of :data:`ROUNDINGS`; 0: they stay as they are."""
    input_scale: float = 0.0
    """Of all activations; 0: of each token, or group of its inputs, by their largest."""
    input_steps: int = 0
    """Times 32 inputs share a scale of activations; 0: all."""

    @property
    def scales_outputs(self) -> bool:
        """Whether each output has a scale apart from the records."""
        return self.kind in ("int8", "w8a8") or (self.kind == "float8" and not self.group_steps)


FORMS: Final[dict[Kind, Form]] = {
    "none": Form("none"),
    "int8": Form("int8"),
    "int4": Form("int4", group_steps=1),
    "w8a8": Form("w8a8", rounding=ROUNDINGS["int8"]),
}


class Parts(NamedTuple):
    """The tensors of a packed weight, row-major and aligned to 64 bytes; those that it does not need are empty."""

    records: Tensor
    """uint8, as ``layout.h`` says."""
    scales: Tensor
    """Where :attr:`Form.scales_outputs`: [padded outputs] fp32."""
    bias: Tensor
    """[padded outputs] fp32."""
    order: Tensor
    """[columns] int32: the input that each column of the weight multiplies (act-order)."""


class NativeLinear:
    """A weight packed for the native kernels."""

    __slots__ = ("_multiply", "_weight", "address", "deterministic", "form", "inputs", "nbytes", "outputs", "parts")

    def __init__(self, outputs: int, inputs: int, form: Form, deterministic: bool, parts: Parts) -> None:
        library = _functions()
        assert library is not None
        self.outputs, self.inputs, self.form, self.deterministic = outputs, inputs, form, deterministic
        _kinds.add(form.kind)
        self._weight = _weight(form, deterministic, outputs, parts.order.numel() or inputs)
        self.address = ctypes.addressof(self._weight)
        self._multiply = library.blade_linear
        self.nbytes = sum(tensor.nbytes for tensor in parts)
        self.place(parts)

    @property
    def columns(self) -> int:
        """Of the packed weight: with act-order, perhaps more than inputs."""
        return self.parts.order.numel() or self.inputs

    def place(self, parts: Parts) -> None:
        """Read the weight from another copy of its parts from now on."""
        self.parts = parts  # kept alive for their addresses
        self._weight.records = parts.records.data_ptr()
        self._weight.scales = parts.scales.data_ptr()
        self._weight.bias = parts.bias.data_ptr() if parts.bias.numel() else None
        self._weight.order = parts.order.data_ptr() if parts.order.numel() else None

    def pack_rows(self, first: int, count: int, source: int) -> None:
        """Pack ``count`` outputs from address ``source`` into the records from output ``first`` on, the first of its
        panel."""
        library = _functions()
        assert library is not None
        part = _weight(self.form, self.deterministic, count, self.inputs)
        panel_bytes = int(library.blade_linear_panel_bytes(ctypes.addressof(part)))
        part.records = self.parts.records.data_ptr() + first // PANEL * panel_bytes
        part.scales = self.parts.scales.data_ptr() + first * self.parts.scales.itemsize
        library.blade_linear_pack(ctypes.addressof(part), source)

    def pack_integers(self, values: Tensor, scales: Tensor, zeros: Tensor | None, shift: int) -> None:
        """Pack [outputs, inputs] uint8 with what ``Integers`` of ``pack_affine.h`` has besides, all contiguous."""
        library = _functions()
        assert library is not None
        zeros_address = None if zeros is None else zeros.data_ptr()
        source = _Integers(values.data_ptr(), scales.data_ptr(), zeros_address, shift)
        library.blade_linear_pack_integers(self.address, ctypes.addressof(source))

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.inputs or x.dtype != torch.bfloat16:
            raise ValueError(f"expected [tokens, {self.inputs}] bf16, got {list(x.shape)} {x.dtype}")
        if x.stride(1) != 1:
            x = x.contiguous()
        rows = x.shape[0]
        y = torch.empty((rows, self.outputs), dtype=torch.bfloat16)
        self._multiply(self.address, x.data_ptr(), rows, x.stride(0), y.data_ptr())
        return y


def kinds_in_use() -> list[Kind]:
    """The kinds of weights that this process multiplies with these kernels."""
    return sorted(_kinds)


def is_available() -> bool:
    """Whether this CPU has the kernels."""
    return _functions() is not None


def pack(weight: Tensor, bias: Tensor | None, quant: Quantization, deterministic: bool) -> NativeLinear | None:
    """As :func:`blade_llm.kernels.linear.pack`; None where these kernels cannot take it."""
    if weight.dtype != torch.bfloat16 or _functions() is None:
        return None
    return _pack([weight], bias, FORMS[quant], deterministic, _arena)


def pack_quantized(weight: QuantizedWeight, bias: Tensor | None, deterministic: bool) -> NativeLinear | None:
    """As :func:`blade_llm.kernels.linear.pack_quantized`, for inputs in bf16; None where these kernels cannot take it:
    groups must be whole rows or multiples of 32 inputs, and tensors in the CPU's memory.

    Integers and scales are kept as they are. Few rows are multiplied with exactly these; for many, a weight is made
    bf16 in between, rounded once.

    Raises ``ValueError`` for integers that have more bits than they should, or an order that is no permutation.
    """
    whole_rows = weight.group_size >= weight.columns
    if _functions() is None or weight.integers.device.type != "cpu" or (weight.group_size % PANEL and not whole_rows):
        return None
    if not weight.integers.numel():
        return None
    least, most = (int(each) for each in torch.aminmax(weight.integers))
    if most >> weight.bits:
        raise ValueError(f"integers of {weight.bits} bits reach {most}")
    if weight.activations is not None:
        return _pack_w8a8(weight, weight.activations, bias, deterministic)
    order = _NO_ORDER
    if weight.order is not None:
        used = weight.order.sort().values
        if weight.used is not None:
            used = used.bincount().nonzero()[:, 0]  # once each
        if not torch.equal(used, torch.arange(weight.inputs)):
            raise ValueError(f"the order of inputs must have each of 0 to {weight.inputs - 1} once")
        order = weight.order.int()
    kind: Kind = "affine4" if weight.bits <= 4 else "affine8"
    zeros = None
    if weight.zeros is not None:
        above = weight.zeros.short() - MIDDLES[kind]
        if int(above.max()) > 127:
            return None
        zeros = above.to(torch.int8).contiguous()
    shift = MIDDLES[kind] - weight.middle if zeros is None else 0
    group_steps = -(-min(weight.group_size, weight.columns) // PANEL)
    form = Form(kind, group_steps, SCALE_TYPES[weight.scales.dtype], zeros is not None)
    scales = weight.scales
    if kind == "affine8" and whole_rows and zeros is None and least + shift > 0:  # -128 is what int8's kernels lack
        form, scales = FORMS["int8"], weight.scales.float()
    linear = _empty(weight.outputs, weight.inputs, form, bias, deterministic, order, _arena)
    if form.kind == "int8":
        linear.parts.scales[: weight.outputs] = scales[:, 0]
    linear.pack_integers(weight.integers.contiguous(), scales.contiguous(), zeros, shift)
    return linear


def _pack_w8a8(
    weight: QuantizedWeight, activations: Activations, bias: Tensor | None, deterministic: bool
) -> NativeLinear | None:
    """Symmetric integers, one scale an output, by activations that are integers with one scale a token."""
    if weight.bits != MAX_BITS or weight.groups > 1 or weight.zeros is not None or weight.order is not None:
        return None
    if activations.kind != "int8" or activations.group_size is not None or weight.inputs > BYTE_INPUTS:
        return None
    form = FORMS["w8a8"]._replace(input_scale=activations.scale or 0.0)
    linear = _empty(weight.outputs, weight.inputs, form, bias, deterministic, _NO_ORDER, _arena)
    linear.parts.scales[: weight.outputs] = weight.scales[:, 0]
    linear.pack_integers(weight.integers.contiguous(), weight.scales.contiguous(), None, 0)
    return linear


def pack_float8(weight: Float8Weight, bias: Tensor | None, deterministic: bool) -> NativeLinear | None:
    """As :func:`pack_quantized`: blocks, and groups of activations, must have whole rows or multiples of 32 inputs."""
    columns, activations = weight.block[1], weight.activations
    if _functions() is None or weight.values.device.type != "cpu" or not weight.values.numel():
        return None
    if columns % PANEL and columns < weight.inputs:
        return None
    rounding, scale, input_steps = 0, 0.0, 0
    if activations is not None:
        group = activations.group_size
        if activations.kind != "fp8" or (group is not None and group % PANEL and group < weight.inputs):
            return None
        rounding, scale = ROUNDINGS["fp8"], activations.scale or 0.0
        input_steps = 0 if group is None or group >= weight.inputs else group // PANEL
    group_steps = 0 if columns >= weight.inputs else columns // PANEL
    form = Form("float8", group_steps, SCALE_TYPES[torch.float32], False, rounding, scale, input_steps)
    linear = _empty(weight.outputs, weight.inputs, form, bias, deterministic, _NO_ORDER, _arena)
    scales = weight.scales.float().repeat_interleave(weight.block[0], dim=0)[: weight.outputs].contiguous()
    if form.scales_outputs:
        linear.parts.scales[: weight.outputs] = scales[:, 0]
    linear.pack_integers(weight.values.contiguous().view(torch.uint8), scales, None, 0)
    return linear


def pack_stacked(
    weights: Sequence[Tensor], bias: Tensor | None, quant: Quantization, deterministic: bool
) -> NativeLinear | None:
    """As :func:`pack` of ``weights`` one above the other, which are not copied for it; None where their rows do not
    fill panels."""
    if _functions() is None or any(each.dtype != torch.bfloat16 or len(each) % PANEL for each in weights):
        return None
    return _pack(weights, bias, FORMS[quant], deterministic, _arena)


def _empty(
    outputs: int,
    inputs: int,
    form: Form,
    bias: Tensor | None,
    deterministic: bool,
    order: Tensor,
    arena: HugePageArena,
) -> NativeLinear:
    """A layer of which the records are to be written; ``bias``: [out]; ``arena``: for them."""
    library = _functions()
    assert library is not None
    panels = -(-outputs // PANEL)
    weight = _weight(form, deterministic, outputs, order.numel() or inputs)
    records = arena.empty(panels * int(library.blade_linear_panel_bytes(ctypes.addressof(weight))))
    scales = torch.zeros(panels * PANEL if form.scales_outputs else 0)
    padded_bias = torch.zeros(panels * PANEL if bias is not None else 0)
    if bias is not None:
        padded_bias[:outputs] = bias
    return NativeLinear(outputs, inputs, form, deterministic, Parts(records, scales, padded_bias, order))


def _pack(
    weights: Sequence[Tensor], bias: Tensor | None, form: Form, deterministic: bool, arena: HugePageArena
) -> NativeLinear:
    """``weights``: [out, in] bf16, all but the last of whole panels; ``bias``: [all out]."""
    outputs, inputs = sum(map(len, weights)), weights[0].shape[1]
    linear = _empty(outputs, inputs, form, bias, deterministic, _NO_ORDER, arena)
    first = 0
    for weight in weights:
        source = weight.contiguous()
        linear.pack_rows(first, len(weight), source.data_ptr())
        first += len(weight)
    return linear


def measure_prefetch(kind: Kind, rounds: int = 12) -> int:
    """The distance of :data:`PREFETCH_DISTANCES` with which a single row is multiplied fastest.

    The distances take turns and the fastest of ``rounds`` counts: a quarter of a second in all. The weight is larger
    than a core's share of the caches.
    """
    functions = _functions()
    assert functions is not None
    outputs, inputs = 32_768 if kind == "none" else 65_536, 1024
    arena = HugePageArena()  # goes with the layer
    if kind in FORMS:
        layer = _pack([torch.zeros(outputs, inputs, dtype=torch.bfloat16)], None, FORMS[kind], False, arena)
    else:
        form = Form(kind) if kind == "float8" else Form(kind, group_steps=2, has_zeros=True)
        layer = _empty(outputs, inputs, form, None, False, _NO_ORDER, arena)
        layer.parts.records.zero_()
    row = torch.zeros(1, 1024, dtype=torch.bfloat16)
    best = dict.fromkeys(PREFETCH_DISTANCES, float("inf"))
    before = functions.blade_linear_set_prefetch(KINDS[kind], 0)
    for _ in range(rounds):
        for distance in best:
            functions.blade_linear_set_prefetch(KINDS[kind], distance)
            start = time.perf_counter()
            layer(row)
            best[distance] = min(best[distance], time.perf_counter() - start)
    functions.blade_linear_set_prefetch(KINDS[kind], before)
    return min(best, key=best.__getitem__)


def set_prefetch(kind: Kind, distance: int) -> None:
    """Fetch weights of ``kind`` ``distance`` bytes ahead."""
    functions = _functions()
    assert functions is not None
    functions.blade_linear_set_prefetch(KINDS[kind], distance)


def prefetch_matters(kind: Kind) -> bool:
    """Whether the kernels in use fetch at a distance that is measured."""
    if _functions() is None:
        return False
    if kind in ("w8a8", "float8"):
        return native.isa() == "avx512_bf16"
    return kind != "none" or native.isa() != "amx"


def measure_integers(rounds: int = 12) -> bool:
    """Whether many rows by quantised weights are faster as integers than in bf16: a matter of the CPU's dot products.

    By much or not at all, so that a tenth of a second is enough. 8 bits count for 4, which gain more.
    """
    functions = _functions()
    assert functions is not None
    layer = _pack([torch.zeros(512, 1024).bfloat16()], None, FORMS["int8"], False, HugePageArena())
    rows = torch.ones(32, 1024, dtype=torch.bfloat16)
    best = {0: float("inf"), 1: float("inf")}
    before = functions.blade_linear_set_always_integers(0)
    for _ in range(rounds):
        for always in best:
            functions.blade_linear_set_always_integers(always)
            start = time.perf_counter()
            layer(rows)
            best[always] = min(best[always], time.perf_counter() - start)
    functions.blade_linear_set_always_integers(before)
    return best[1] < best[0]


def set_always_integers(always: bool) -> None:
    """Multiply quantised weights as integers whatever the number of rows, where :func:`integers_matter`."""
    functions = _functions()
    assert functions is not None
    functions.blade_linear_set_always_integers(always)


def integers_matter() -> bool:
    """Whether a quantised weight of this process has the choice between integers and bf16 for many rows."""
    return _functions() is not None and native.isa() == "avx512_bf16" and bool(_kinds - {"none", "w8a8", "float8"})


@cache
def _functions() -> ctypes.CDLL | None:
    library = native.library()
    if library is None or not library.blade_linear_supported():
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.blade_linear_panel_bytes.argtypes = (pointer,)
    library.blade_linear_panel_bytes.restype = number
    for packer in (library.blade_linear_pack, library.blade_linear_pack_integers):
        packer.argtypes = (pointer, pointer)
        packer.restype = None
    library.blade_linear.argtypes = (pointer, pointer, number, number, pointer)
    library.blade_linear.restype = None
    library.blade_linear_set_prefetch.argtypes = (ctypes.c_int, number)
    library.blade_linear_set_prefetch.restype = number
    return library


def _weight(form: Form, deterministic: bool, outputs: int, inputs: int) -> _Weight:
    """Without its data."""
    return _Weight(
        KINDS[form.kind],
        deterministic,
        outputs,
        inputs,
        levels=_levels(form.kind).data_ptr(),
        group_steps=form.group_steps,
        scale_type=form.scale_type,
        has_zeros=form.has_zeros,
        rounding=form.rounding,
        input_scale=form.input_scale,
        input_steps=form.input_steps,
    )


@cache
def _levels(kind: Kind) -> Tensor:
    """What the 16 values of a nibble stand for, twice."""
    levels = INT4_LEVELS if kind == "int4" else tuple(range(-8, 8))
    return torch.tensor(levels * 2).bfloat16()
