"""Activations rounded to 8 bits token by token, as SmoothQuant's paper has it (Xiao et al., arXiv 2211.10438, Eq. 1).

What is served rounds as compressed-tensors does, with half a step more: :mod:`blade_llm.kernels.linear.activations`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from blade_llm.quantization.checks import checked_rows
from blade_llm.quantization.float8 import FP8_MOST, as_float8, scales_to

INT8_MOST = 127
"""-128 is left out, so that the range is the same on both sides."""


class QuantizedActivations(NamedTuple):
    """``values * scales``."""

    values: Tensor
    """[tokens, in] int8 or float8_e4m3fn."""
    scales: Tensor
    """[tokens, 1] fp32, or [1, 1] if one was given for all."""

    def dequantize(self) -> Tensor:
        """[tokens, in] fp32."""
        return self.values.float() * self.scales


def quantize_activations(x: Tensor, kind: Literal["int8", "fp8"], scale: Tensor | None = None) -> QuantizedActivations:
    """``x`` ([tokens, in]) rounded, each token with the scale that its largest magnitude needs.

    ``scale``: one for all tokens instead (static quantisation), such as :func:`static_scale` of calibration's maximum;
    what does not fit is clipped. Raises ValueError for activations that are not finite.
    """
    x = checked_rows(x, x.shape[-1]).float()
    largest = INT8_MOST if kind == "int8" else FP8_MOST
    scales = scales_to(x.abs().amax(1, keepdim=True), largest) if scale is None else scale.float().view(1, 1)
    scaled = x / scales
    if kind == "fp8":
        return QuantizedActivations(as_float8(scaled), scales)
    return QuantizedActivations(scaled.round_().clamp_(-INT8_MOST, INT8_MOST).to(torch.int8), scales)


def static_scale(most: Tensor, kind: Literal["int8", "fp8"]) -> Tensor:
    """[1, 1] fp32: the scale for activations of at most ``most`` ([in], max |x| in calibration)."""
    return scales_to(most.max().view(1, 1), INT8_MOST if kind == "int8" else FP8_MOST)
