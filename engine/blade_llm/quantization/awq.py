"""AWQ: inputs with large activations are scaled up before rounding, so that less of their weights is lost (Lin et al.,
arXiv 2306.00978)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.quantization.checks import check_per_input, check_weights
from blade_llm.quantization.clipping import least_output_error
from blade_llm.quantization.folding import scale_inputs
from blade_llm.quantization.grid import Grid
from blade_llm.quantization.hessian import Hessian
from blade_llm.quantization.report import output_energy

POINTS = 20
"""Steps of the search from an exponent of 0, plain rounding, to 1."""
_LEAST = 1e-4
"""Of a scale before they are normalised, as in the authors' code: inputs that are never used divide by it."""
_ROWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class AwqScales:
    """The scales that a group of layers shares."""

    scales: Tensor
    """[in] fp32: the layers' weights are multiplied by them, the inputs divided."""
    alpha: float
    """The exponent found."""
    errors: tuple[float, ...]
    """Relative squared output error of all layers together for each exponent tried, the smallest first."""


@dataclass(frozen=True, slots=True, eq=False)
class AwqResult:
    """Layers that share an input, scaled and quantised."""

    weights: tuple[QuantizedWeight, ...]
    """For inputs divided by the scales."""
    scales: AwqScales


def awq(
    weights: Sequence[Tensor],
    hessian: Hessian,
    magnitudes: Tensor,
    grid: Grid,
    *,
    points: int = POINTS,
    weights_too: bool = False,
    clip: bool = True,
) -> AwqResult:
    """Search scales for ``weights``, then ranges for each group of the scaled ones (``clip``), and round.

    Arguments as of :func:`search_scales`. What computes the inputs has to be divided by the scales:
    :mod:`blade_llm.quantization.folding`.
    """
    found = search_scales(weights, hessian, magnitudes, grid, points=points, weights_too=weights_too)
    of_scaled = hessian.scaled(1 / found.scales)
    quantized = []
    for weight in weights:
        scaled = scale_inputs(weight, found.scales)
        quantized.append(grid.quantize(scaled, least_output_error(scaled, grid, of_scaled) if clip else None))
    return AwqResult(tuple(quantized), found)


def search_scales(
    weights: Sequence[Tensor],
    hessian: Hessian,
    magnitudes: Tensor,
    grid: Grid,
    *,
    points: int = POINTS,
    weights_too: bool = False,
) -> AwqScales:
    """The scales ``s = mean|x| ** alpha`` with the least output error of the rounded layers (eq. 4 and 5).

    ``weights``: each [out, in], of layers that share their input. ``hessian``, ``magnitudes`` ([in], mean |x|): of that
    input. The error is that of the layers' own outputs, on all of calibration: ``|Q(W s) x / s - W x| ** 2``.
    ``weights_too``: divide by ``mean|w| ** (1 - alpha)``, where weights are relative to the largest of their group, as
    the authors' code does by now. Raises ValueError for weights, statistics and grids that do not fit together.
    """
    check_weights(tuple(weights))
    inputs = weights[0].shape[1]
    hessian.expect(inputs)
    check_per_input("magnitudes", magnitudes, inputs)
    if points < 1:
        raise ValueError(f"{points} points to search: choose at least 1, such as {POINTS}")
    relative = _relative_magnitudes(weights, grid) if weights_too else None
    energy = sum(output_energy(weight, hessian) for weight in weights)
    alphas = [point / points for point in range(points + 1)]
    errors = []
    for alpha in alphas:
        scales = scales_of(magnitudes, alpha, relative)
        wrong = sum(_scaled_error(weight, scales, hessian, grid) for weight in weights)
        errors.append(wrong / energy if energy > 0 else 0.0)
    best = min(range(len(alphas)), key=errors.__getitem__)
    return AwqScales(scales_of(magnitudes, alphas[best], relative), alphas[best], tuple(errors))


def scales_of(magnitudes: Tensor, alpha: float, weights: Tensor | None = None) -> Tensor:
    """[in] fp32: ``magnitudes ** alpha`` (over ``weights ** (1 - alpha)``), with 1 midway between least and most."""
    scales = magnitudes.float().pow(alpha)
    if weights is not None:
        scales = scales / (weights.pow(1 - alpha) + _LEAST)
    scales = scales.clamp_min(_LEAST)
    return scales / (scales.max() * scales.min()).sqrt()


def _relative_magnitudes(weights: Sequence[Tensor], grid: Grid) -> Tensor:
    total = torch.zeros(weights[0].shape[1], dtype=torch.float64, device=weights[0].device)
    for weight in weights:
        for rows in torch.split(weight, _ROWS):
            groups = grid.grouped(rows).abs()
            most = groups.amax(-1, keepdim=True)
            total += (groups / most.where(most > 0, torch.ones_like(most))).flatten(1).sum(0, dtype=torch.float64)
    return (total / sum(map(len, weights))).float()


def _scaled_error(weight: Tensor, scales: Tensor, hessian: Hessian, grid: Grid) -> float:
    wrong = 0.0
    for rows in torch.split(weight, _ROWS):
        rounded = grid.quantize(scale_inputs(rows, scales)).dequantize() / scales
        wrong += output_energy(rounded.sub_(rows.float()), hessian)
    return wrong
