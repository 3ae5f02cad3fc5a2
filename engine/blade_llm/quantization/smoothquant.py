"""SmoothQuant: outliers of activations moved into the weights, so that both fit 8 bits (Xiao et al., arXiv
2211.10438)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.quantization.checks import check_per_input, check_weights
from blade_llm.quantization.folding import scale_inputs
from blade_llm.quantization.grid import Grid, RangeSearch
from blade_llm.quantization.minmax import minmax

ALPHA = 0.5
"""Half the difficulty to the weights, the paper's value for OPT and Bloom; models with more outliers take up to
0.9."""
_LEAST = 1e-5
"""Of a scale, as in the authors' code."""


@dataclass(frozen=True, slots=True, eq=False)
class Smoothed:
    """Layers that share an input, smoothed and quantised."""

    weights: tuple[QuantizedWeight, ...]
    """For inputs divided by the scales."""
    scales: Tensor
    """[in] fp32."""


def smoothing_scales(weights: Sequence[Tensor], most: Tensor, alpha: float = ALPHA) -> Tensor:
    """[in] fp32: ``max|x| ** alpha / max|w| ** (1 - alpha)`` for each input (eq. 4).

    ``weights``: each [out, in], of layers that share their input; ``most`` ([in]): max |x| of it in calibration. An
    input that is never used, or has no weight, keeps a scale of 1. Raises ValueError for an exponent outside 0 to 1,
    and for weights and statistics that do not fit together.
    """
    check_weights(tuple(weights))
    check_per_input("most", most, weights[0].shape[1])
    if not 0 <= alpha <= 1:
        raise ValueError(
            f"an alpha of {alpha}: choose 0 (all difficulty stays in the activations) to 1 (all in weights)"
        )
    largest = torch.stack([weight.abs().amax(0).float() for weight in weights]).amax(0)
    scales = most.float().pow(alpha) / largest.pow(1 - alpha)
    return scales.where((most > 0) & (largest > 0), torch.ones_like(scales)).clamp_min(_LEAST)


def smoothquant(
    weights: Sequence[Tensor],
    most: Tensor,
    alpha: float = ALPHA,
    grid: Grid = Grid(8),  # noqa: B008
    search: RangeSearch | None = None,
) -> Smoothed:
    """Smooth ``weights`` and round them to nearest; by default 8 bits with a scale for each output, as W8A8 needs.

    Arguments as of :func:`smoothing_scales` and :func:`blade_llm.quantization.minmax.minmax`. What computes the inputs
    has to be divided by the scales: :mod:`blade_llm.quantization.folding`.
    """
    scales = smoothing_scales(weights, most, alpha)
    return Smoothed(tuple(minmax(scale_inputs(weight, scales), grid, search) for weight in weights), scales)
