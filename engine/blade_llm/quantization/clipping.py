"""Ranges narrower than the weights': clipping a few outliers lets all the others have a finer step."""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.quantization.checks import check_weight
from blade_llm.quantization.grid import Grid, Ranges, ranges_of
from blade_llm.quantization.hessian import Hessian

_ROWS = 256
"""Outputs searched at a time: their candidates stay in the CPU's caches."""


def least_weight_error(
    weight: Tensor, grid: Grid, *, shrink: float = 0.8, points: int = 100, power: float = 2.4
) -> Ranges:
    """Ranges with the least sum of ``|error|**power`` over a group's weights: the search of GPTQ's code for ``mse``.

    Both ends shrink together, by steps of ``1 / points`` of the range and by at most ``shrink`` of it. The power above
    two minds large errors more, which the other columns cannot make good. Raises ValueError as :meth:`Grid.quantize`.
    """
    check_weight(weight)
    factors = _factors(shrink, points)
    lows, highs = [], []
    for start in range(0, len(weight), _ROWS):
        groups = grid.grouped(weight[start : start + _ROWS])
        full = ranges_of(groups)
        best = torch.full_like(full.low, float("inf"))
        low, high = full.low.clone(), full.high.clone()
        for factor in factors:
            tried = Ranges(full.low * factor, full.high * factor)
            error = _rounded(groups, grid, tried).sub_(groups).abs_().pow_(power).sum(-1)
            _keep_better(error, best, tried, low, high)
        lows.append(low)
        highs.append(high)
    return Ranges(torch.cat(lows), torch.cat(highs))


def least_output_error(
    weight: Tensor, grid: Grid, hessian: Hessian, *, shrink: float = 0.5, points: int = 20
) -> Ranges:
    """Ranges with the least squared error of each group's share of the outputs: AWQ's search (arXiv 2306.00978, §5.1
    and its code for ``auto_clip``), on all calibration tokens instead of a sample of them.

    The error of group g is ``d H_g d`` for weights wrong by ``d`` and the Hessian's block ``H_g`` of its inputs. The
    largest magnitude kept shrinks by steps of ``1 / points``, by at most ``shrink``. Raises ValueError as
    :meth:`Grid.quantize`, and for a Hessian of another number of inputs.
    """
    check_weight(weight)
    factors = _factors(shrink, points)
    blocks = hessian.expect(weight.shape[1]).blocks(grid.group_of(weight.shape[1]))
    lows, highs = [], []
    for start in range(0, len(weight), _ROWS):
        groups = grid.grouped(weight[start : start + _ROWS])
        full = ranges_of(groups)
        magnitude = torch.maximum(-full.low, full.high)
        best = torch.full_like(full.low, float("inf"))
        low, high = full.low.clone(), full.high.clone()
        for factor in factors:
            most = magnitude * factor
            tried = Ranges(torch.maximum(full.low, -most), torch.minimum(full.high, most))
            wrong = _rounded(groups, grid, tried).sub_(groups).transpose(0, 1)
            error = (wrong @ blocks).mul_(wrong).sum(-1).T
            _keep_better(error, best, tried, low, high)
        lows.append(low)
        highs.append(high)
    return Ranges(torch.cat(lows), torch.cat(highs))


def _factors(shrink: float, points: int) -> list[float]:
    if not 0 <= shrink < 1 or points < 1:
        raise ValueError(f"shrink {shrink} must be from 0 to below 1, and points {points} at least 1")
    return [1 - point / points for point in range(max(1, round(shrink * points)))]


def _rounded(groups: Tensor, grid: Grid, ranges: Ranges) -> Tensor:
    steps = grid.steps(ranges)
    scales, zeros = steps.scales.float()[..., None], steps.zeros[..., None]
    return grid.nearest(groups, scales, zeros).sub_(zeros).mul_(scales)


def _keep_better(error: Tensor, best: Tensor, tried: Ranges, low: Tensor, high: Tensor) -> None:
    better = error < best
    best.copy_(best.where(~better, error))
    low.copy_(low.where(~better, tried.low))
    high.copy_(high.where(~better, tried.high))
