"""One weight of the checkpoint as the tensors that stand for it in the quantised one, and how far they are from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.quantization.checks import check_weight
from blade_llm.quantization.float8 import FP8, quantize_float8
from blade_llm.quantization.grid import Grid
from blade_llm.quantization.minmax import minmax
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.packing import pack_columns, pack_rows
from blade_llm.spec.quantization.weights import IntegerForm

_ROWS: Final = 1024
"""Outputs that are handled at a time where fp32 copies are made."""
_DOUBLE_ROWS: Final = 64
"""The same of fp64 copies."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """What stands for a weight."""

    tensors: dict[str, Tensor]
    """By their names below the module."""
    error: float
    """``|W - Q| / |W|``, Frobenius norms: 0 is none, 1 as much as a layer of zeros makes."""
    output_error: float | None = None
    """``|W X - Q X| / |W X|`` over the tokens of calibration; None without them."""
    notes: tuple[str, ...] = ()
    """What a user should know of its calibration."""


def compress(weight: Tensor, options: QuantizeOptions) -> Compressed:
    """``weight`` ([out, in] fp32, fp16 or bf16) quantised; scales have its type, and the weights are rounded to
    multiples of the scales that are stored.

    Raises ``ValueError`` for weights that are not finite, or whose scales do not fit their type.
    """
    if options.dtype == "fp8":
        return _float8(weight)
    grid = Grid(options.bits, options.group_size, options.symmetric, weight.dtype)
    quantized = minmax(weight, grid)
    return Compressed(integer_tensors(quantized, options), _integer_error(weight, quantized))


def rounded(weight: Tensor, options: QuantizeOptions) -> Tensor:
    """[out, in] fp32: the numbers that :func:`compress` makes of ``weight``. Raises ``ValueError`` as that does."""
    if options.dtype == "fp8":
        return quantize_float8(weight, "channel", weight.dtype).dequantize()
    return minmax(weight, Grid(options.bits, options.group_size, options.symmetric, weight.dtype)).dequantize()


def integer_tensors(quantized: QuantizedWeight, options: QuantizeOptions) -> dict[str, Tensor]:
    """What stands for a weight of integers, by the names below the module."""
    form = options.form
    if isinstance(form, IntegerForm) and not form.packed:
        return {"weight": _signed(quantized), "weight_scale": quantized.scales}
    tensors = {
        "weight_packed": pack_columns(quantized.integers, quantized.bits),
        "weight_scale": quantized.scales,
        "weight_shape": torch.tensor(quantized.integers.shape, dtype=torch.int64),
    }
    if quantized.zeros is not None:
        tensors["weight_zero_point"] = pack_rows(quantized.zeros, quantized.bits)
    return tensors


def _signed(quantized: QuantizedWeight) -> Tensor:
    """[out, in] int8, around 0."""
    return (quantized.integers ^ quantized.middle).view(torch.int8)


def _float8(weight: Tensor) -> Compressed:
    values, scales = torch.empty(weight.shape, dtype=FP8), torch.empty(len(weight), 1, dtype=weight.dtype)
    error = _Error()
    check_weight(weight)
    for start in range(0, len(weight), _ROWS):
        rows = slice(start, start + _ROWS)
        found = quantize_float8(weight[rows], "channel", weight.dtype)
        values[rows], scales[rows] = found.values, found.scales
        error.add(weight[rows].float(), found.dequantize())
    return Compressed({"weight": values, "weight_scale": scales}, error.relative)


def _integer_error(weight: Tensor, quantized: QuantizedWeight) -> float:
    error = _Error()
    for start in range(0, len(weight), _ROWS):
        block = weight[start : start + _ROWS].float()
        error.add(block, quantized.dequantize_columns(start, start + len(block)))
    return error.relative


class _Error:
    """Squares of weights and of what they are wrong by, rows by rows."""

    def __init__(self) -> None:
        self._wrong = self._whole = 0.0

    def add(self, block: Tensor, found: Tensor) -> None:
        """Rows in fp32, and what they became. Squares are fp64: those of weights above 1.8e19 are beyond fp32."""
        for start in range(0, len(block), _DOUBLE_ROWS):
            rows = slice(start, start + _DOUBLE_ROWS)
            whole = block[rows].double()
            self._wrong += float((found[rows].double() - whole).square_().sum())
            self._whole += float(whole.square_().sum())

    @property
    def relative(self) -> float:
        """As :attr:`Compressed.error`; that of zeros is 0. Raises ``ValueError`` where it is not finite."""
        error = math.sqrt(self._wrong / self._whole) if self._whole else 0.0
        if not math.isfinite(error):
            raise ValueError("rounded, its largest weights are more than their type can hold")
        return error
