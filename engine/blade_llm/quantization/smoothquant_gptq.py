"""SmoothQuant, then GPTQ on the smoothed weights instead of rounding to nearest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.quantization.folding import scale_inputs
from blade_llm.quantization.gptq import GptqOptions, GptqResult, gptq
from blade_llm.quantization.grid import Grid, RangeSearch, weight_ranges
from blade_llm.quantization.hessian import Hessian
from blade_llm.quantization.smoothquant import ALPHA, smoothing_scales


@dataclass(frozen=True, slots=True, eq=False)
class SmoothedGptq:
    """Layers that share an input, one above the other, smoothed and quantised."""

    result: GptqResult
    """To be taken apart by :func:`blade_llm.quantization.gptq.split`. For inputs divided by the scales."""
    scales: Tensor
    """[in] fp32."""


def smoothquant_gptq(
    weights: Sequence[Tensor],
    hessian: Hessian,
    most: Tensor,
    alpha: float = ALPHA,
    grid: Grid = Grid(8),  # noqa: B008
    options: GptqOptions = GptqOptions(),  # noqa: B008
    search: RangeSearch = weight_ranges,
) -> SmoothedGptq:
    """Smooth ``weights`` (each [out, in], of layers that share their input) and quantise them by GPTQ.

    ``hessian``, ``most`` ([in], max |x|): of the inputs as they are; those of the smoothed inputs follow from them.
    Other arguments as of :func:`blade_llm.quantization.smoothquant.smoothing_scales` and
    :func:`blade_llm.quantization.gptq.gptq`.
    """
    scales = smoothing_scales(weights, most, alpha)
    stacked = torch.cat([scale_inputs(weight, scales) for weight in weights])
    return SmoothedGptq(gptq(stacked, hessian.scaled(1 / scales), grid, options, search), scales)
