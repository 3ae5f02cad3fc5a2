"""The reference: oneDNN's packed form on CPU, and quantised weights multiplied after making them floats again."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.linear.activations import Activations
from blade_llm.kernels.linear.affine import AffineLinear
from blade_llm.kernels.linear.packed import PackedLinear, Quantization
from blade_llm.kernels.linear.quantized import QuantizedWeight

INT4_LEVELS = tuple(unit / 128 for unit in (-128, -101, -81, -64, -49, -36, -24, -12, 0, 12, 25, 38, 52, 68, 87, 111))
"""Levels of least squared error for groups of 32 normal values of which the largest falls on -1, as whole numbers of
1/128: exact in bf16, and integers for kernels that multiply those."""
GROUP = 32
CPU_ROWS = 16
GPU_ROWS = 128
"""Rows that a deterministic layer multiplies at once. A GPU takes about as long for fewer: it waits for the weight."""
REFITS = 2
"""Times the scale of a group is fitted to the levels chosen, and the levels to the scale."""


class OneDnnLinear:
    """oneDNN's blocked layout: saves the repacking of every call."""

    __slots__ = ("_bias", "_weight", "nbytes")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


class PlainLinear:
    """The weight as it is."""

    __slots__ = ("_bias", "_weight", "nbytes")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class Int8Linear:
    """Integers and one scale per output."""

    __slots__ = ("_bias", "_integers", "_scales", "nbytes")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._integers, self._scales = quantize_int8(weight)
        self._bias = bias
        self.nbytes = self._integers.nbytes + self._scales.nbytes + (bias.nbytes if bias is not None else 0)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, (self._integers * self._scales).to(x.dtype), self._bias)


class Int4Linear:
    """Indices of levels, two in a byte, and one scale per group."""

    __slots__ = ("_bias", "_inputs", "_pairs", "_scales", "nbytes")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        indices, self._scales = quantize_int4(weight)
        self._inputs = weight.shape[1]
        self._pairs = indices[..., 0::2] | indices[..., 1::2] << 4
        self._bias = bias
        self.nbytes = self._pairs.nbytes + self._scales.nbytes + (bias.nbytes if bias is not None else 0)

    def __call__(self, x: Tensor) -> Tensor:
        indices = torch.stack((self._pairs & 15, self._pairs >> 4), dim=-1).flatten(-2)
        weight = dequantize_int4(indices, self._scales, self._inputs)
        return F.linear(x, weight.to(x.dtype), self._bias)


class FixedRows:
    """Multiplies always the same number of rows at a time, because libraries choose by it how they sum."""

    __slots__ = ("_linear", "_rows", "nbytes")

    def __init__(self, linear: PackedLinear, rows: int) -> None:
        self._linear = linear
        self._rows = rows
        self.nbytes = linear.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        rows = self._rows
        padded = F.pad(x, (0, 0, 0, -len(x) % rows))
        parts = [self._linear(padded[start : start + rows]) for start in range(0, len(padded), rows)]
        return torch.cat(parts)[: len(x)]


def pack(weight: Tensor, bias: Tensor | None, quant: Quantization, deterministic: bool) -> PackedLinear | None:
    """As :func:`blade_llm.kernels.linear.pack`, on any device."""
    linear: OneDnnLinear | PlainLinear | Int8Linear | Int4Linear
    on_gpu = weight.device.type == "cuda"
    if quant == "w8a8":
        rows = rows_at_once(on_gpu=on_gpu) if deterministic else None
        return AffineLinear(rounded_to_int8(weight), bias, rows)
    if quant == "int8":
        linear = Int8Linear(weight, bias)
    elif quant == "int4":
        linear = Int4Linear(weight, bias)
    elif _onednn_packs(weight):
        linear = OneDnnLinear(weight, bias)
    elif deterministic:
        linear = PlainLinear(weight, bias)
    else:
        return None
    return FixedRows(linear, rows_at_once(on_gpu=on_gpu)) if deterministic else linear


def rows_at_once(*, on_gpu: bool) -> int:
    """How many rows a deterministic layer multiplies at once."""
    return GPU_ROWS if on_gpu else CPU_ROWS


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Integers ([out, in] int8) and scales ([out, 1] fp32) of ``weight``."""
    scales = weight.abs().amax(dim=1, keepdim=True).float() / 127
    integers = (weight.float() / scales.where(scales > 0, torch.ones_like(scales))).round_()
    return integers.to(torch.int8), scales


def rounded_to_int8(weight: Tensor) -> QuantizedWeight:
    """``weight`` as :func:`quantize_int8` rounds it, by activations that are rounded token by token."""
    integers, scales = quantize_int8(weight)
    unsigned = (integers.to(torch.int16) + 128).to(torch.uint8)
    return QuantizedWeight(8, unsigned, scales, None, weight.shape[1], activations=Activations("int8"))


def quantize_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Level indices ([out, groups, 32] uint8) and scales ([out, groups, 1] bf16) of ``weight``, padded with zeros."""
    padded = F.pad(weight, (0, -weight.shape[1] % GROUP)).reshape(len(weight), -1, GROUP)
    parts = [_quantize_groups(padded[start : start + 4096].float()) for start in range(0, len(padded), 4096)]
    return torch.cat([indices for indices, _ in parts]), torch.cat([scales for _, scales in parts])


def dequantize_int4(indices: Tensor, scales: Tensor, inputs: int) -> Tensor:
    """fp32 weight [out, inputs] of what :func:`quantize_int4` returned."""
    return (_levels(indices.device)[indices.int()] * scales.float()).flatten(1)[:, :inputs]


def _quantize_groups(groups: Tensor) -> tuple[Tensor, Tensor]:
    levels = _levels(groups.device)
    middles = (levels[1:] + levels[:-1]) / 2
    most, least = groups.amax(-1, keepdim=True), groups.amin(-1, keepdim=True)
    scale = torch.where(-least >= most, -least, -most).bfloat16()
    for refit in range(REFITS + 1):
        inverse = torch.where(scale != 0, 1 / scale.float(), torch.zeros((), device=groups.device))
        indices = torch.bucketize(groups * inverse, middles)
        if refit < REFITS:
            level = levels[indices]
            square = (level * level).sum(-1, keepdim=True)
            fitted = (groups * level).sum(-1, keepdim=True) / square
            scale = torch.where(square > 0, fitted, scale.float()).bfloat16()
    return indices.to(torch.uint8), scale


@cache
def _levels(device: torch.device) -> Tensor:
    return torch.tensor(INT4_LEVELS, device=device).bfloat16().float()


def _onednn_packs(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
