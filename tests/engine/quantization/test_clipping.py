"""Searches for the range of each group, against loops over groups and candidates."""

from __future__ import annotations

import pytest
import torch
from engine_support.layer_inputs import correlated, normal, with_outliers
from torch import Tensor

from blade_llm.quantization import clipping
from blade_llm.quantization.clipping import least_output_error, least_weight_error
from blade_llm.quantization.grid import Grid
from blade_llm.quantization.hessian import Hessian
from blade_llm.quantization.report import layer_error

GRIDS = [Grid(4, 16), Grid(3, 16, symmetric=False), Grid(4, None, symmetric=False)]


def heavy_tailed(outputs: int, inputs: int) -> Tensor:
    return normal(outputs, inputs) * (1 + 3 * (normal(outputs, inputs, seed=1).abs() > 2))


def rounded(group: Tensor, low: float, high: float, grid: Grid) -> Tensor:
    """One group ([group]) between ``low`` and ``high``, as GPTQ's ``quantize``."""
    if grid.symmetric:
        low, high = -max(-low, high), max(-low, high)
    scale = (high - low) / grid.most
    zero = 2 ** (grid.bits - 1) if grid.symmetric else round(-low / scale)
    return (((group / scale).round() + zero).clamp(0, grid.most) - zero) * scale


@pytest.mark.parametrize("grid", GRIDS)
def test_least_weight_error_is_that_of_a_loop(grid: Grid) -> None:
    weight = heavy_tailed(6, 48)
    ranges = least_weight_error(weight, grid, shrink=0.8, points=20)
    size = grid.group_of(48)
    for row in range(6):
        for index, group in enumerate(torch.split(weight[row], size)):
            low, high = min(0.0, float(group.min())), max(0.0, float(group.max()))
            factors = [1 - step / 20 for step in range(16)]
            errors = [
                float((rounded(group, low * factor, high * factor, grid) - group).abs().pow(2.4).sum())
                for factor in factors
            ]
            best = factors[min(range(16), key=errors.__getitem__)]
            assert float(ranges.low[row, index]) == pytest.approx(low * best, abs=1e-6)
            assert float(ranges.high[row, index]) == pytest.approx(high * best, abs=1e-6)


@pytest.mark.parametrize("grid", GRIDS)
def test_least_output_error_is_that_of_a_loop(grid: Grid) -> None:
    weight, x = heavy_tailed(6, 48), correlated(100, 48)
    ranges = least_output_error(weight, grid, Hessian.of(x), shrink=0.5, points=10)
    size = grid.group_of(48)
    for row in range(6):
        for index in range(48 // size):
            inside = slice(index * size, (index + 1) * size)
            group, seen = weight[row, inside], x[:, inside]
            found = []
            for factor in [1 - step / 10 for step in range(5)]:
                most = float(group.abs().max()) * factor
                low, high = max(min(0.0, float(group.min())), -most), min(max(0.0, float(group.max())), most)
                error = float((seen @ (rounded(group, low, high, grid) - group)).square().sum())
                found.append((error, low, high))
            _, low, high = min(found)
            assert float(ranges.low[row, index]) == pytest.approx(low, abs=1e-6)
            assert float(ranges.high[row, index]) == pytest.approx(high, abs=1e-6)


@pytest.mark.parametrize("grid", GRIDS)
def test_searched_ranges_lose_less_than_the_whole_ones(grid: Grid) -> None:
    weight, hessian = heavy_tailed(64, 64), Hessian.of(with_outliers(correlated(500, 64), [3]))
    plain = grid.quantize(weight)
    by_weight = grid.quantize(weight, least_weight_error(weight, grid, power=2.0))
    by_output = grid.quantize(weight, least_output_error(weight, grid, hessian))
    assert layer_error(weight, by_weight).weight < 0.99 * layer_error(weight, plain).weight
    outputs = [layer_error(weight, each, hessian).output for each in (by_output, plain)]
    assert outputs[0] is not None
    assert outputs[1] is not None
    assert outputs[0] < 0.99 * outputs[1]


def test_rows_are_searched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, hessian, grid = heavy_tailed(10, 32), Hessian.of(correlated(50, 32)), Grid(4, 16)
    whole = (*least_weight_error(weight, grid), *least_output_error(weight, grid, hessian))
    monkeypatch.setattr(clipping, "_ROWS", 3)
    parts = (*least_weight_error(weight, grid), *least_output_error(weight, grid, hessian))
    for actual, expected in zip(parts, whole, strict=True):
        torch.testing.assert_close(actual, expected)


def test_bad_input() -> None:
    weight = torch.ones(2, 8)
    with pytest.raises(ValueError, match=r"shrink 1\.0 must be from 0 to below 1"):
        least_weight_error(weight, Grid(4), shrink=1.0)
    with pytest.raises(ValueError, match="NaN or infinite"):
        least_weight_error(weight / 0, Grid(4))
    with pytest.raises(ValueError, match="Hessian of 4 inputs for a weight of 8"):
        least_output_error(weight, Grid(4), Hessian.of(torch.ones(3, 4)))
