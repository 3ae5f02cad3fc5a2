"""AWQ's search of scales against a loop on the activations themselves."""

from __future__ import annotations

import pytest
import torch
from engine_support.layer_inputs import correlated, normal, with_outliers
from torch import Tensor

from blade_llm.quantization.awq import awq, scales_of, search_scales
from blade_llm.quantization.folding import fold_into_linear, fold_into_norm, scale_inputs
from blade_llm.quantization.gptq import gptq
from blade_llm.quantization.grid import Grid
from blade_llm.quantization.hessian import Hessian
from blade_llm.quantization.input_statistics import InputStatistics
from blade_llm.quantization.minmax import minmax

GRIDS = [Grid(4, 16), Grid(3, 32, symmetric=False), Grid(4)]


def layers() -> list[Tensor]:
    return [normal(24, 64), 3 * normal(10, 64, seed=1), normal(7, 64, seed=2)]


def inputs() -> Tensor:
    return with_outliers(correlated(120, 64), [3, 17, 40], 20.0)


def loop(weights: list[Tensor], x: Tensor, grid: Grid, points: int, weights_too: bool) -> tuple[float, list[float]]:
    """The best exponent, and the error of each, by eq. 4 and 5 of arXiv 2306.00978."""
    mean_x = InputStatistics.of(x).mean
    stacked = torch.cat(weights)
    groups = stacked.reshape(len(stacked), -1, grid.group_size or 64).abs()
    mean_w = (groups / groups.amax(-1, keepdim=True)).reshape(len(stacked), 64).double().mean(0).float()
    errors = []
    for point in range(points + 1):
        alpha = point / points
        scales = mean_x**alpha / (mean_w ** (1 - alpha) + 1e-4 if weights_too else 1.0)
        scales = scales / (scales.max() * scales.min()).sqrt()
        wrong, total = 0.0, 0.0
        for weight in weights:
            rounded = minmax(weight * scales, grid).dequantize()
            outputs = x @ weight.T
            wrong += float(((x / scales) @ rounded.T - outputs).double().square().sum())
            total += float(outputs.double().square().sum())
        errors.append(wrong / total)
    return min(range(points + 1), key=errors.__getitem__) / points, errors


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("weights_too", [False, True])
def test_search_is_that_of_a_loop(grid: Grid, weights_too: bool) -> None:
    weights, x = layers(), inputs()
    alpha, errors = loop(weights, x, grid, 10, weights_too)
    magnitudes = InputStatistics.of(x).mean
    found = search_scales(weights, Hessian.of(x), magnitudes, grid, points=10, weights_too=weights_too)
    assert found.alpha == alpha
    assert found.errors == pytest.approx(tuple(errors), rel=1e-3)
    assert 0 < alpha <= 1
    assert float(found.scales.max() * found.scales.min()) == pytest.approx(1.0, rel=1e-4)


def test_exponent_of_zero_is_plain_rounding() -> None:
    """So the search is never worse than it."""
    weights, x, grid = layers(), inputs(), Grid(4, 16)
    found = search_scales(weights, Hessian.of(x), InputStatistics.of(x).mean, grid)
    assert torch.all(scales_of(InputStatistics.of(x).mean, 0.0) == 1)
    plain = sum(float((x @ (minmax(each, grid).dequantize() - each).T).square().sum()) for each in weights)
    total = sum(float((x @ each.T).square().sum()) for each in weights)
    assert found.errors[0] == pytest.approx(plain / total, rel=1e-3)
    assert min(found.errors) < 0.5 * found.errors[0]


@pytest.mark.parametrize("grid", GRIDS)
def test_scaled_layers_of_scaled_inputs_lose_less(grid: Grid) -> None:
    weights, x = layers(), inputs()
    plain, scaled, clipped = 0.0, 0.0, 0.0
    statistics = (Hessian.of(x), InputStatistics.of(x).mean)
    without, with_clip = (awq(weights, *statistics, grid, clip=clip) for clip in (False, True))
    for weight, one, other in zip(weights, without.weights, with_clip.weights, strict=True):
        outputs = x @ weight.T
        plain += float((x @ minmax(weight, grid).dequantize().T - outputs).square().sum())
        scaled += float((x / without.scales.scales @ one.dequantize().T - outputs).square().sum())
        clipped += float((x / with_clip.scales.scales @ other.dequantize().T - outputs).square().sum())
    assert scaled < 0.6 * plain
    assert clipped < 1.02 * scaled  # each group's error shrinks; those of groups that depend on each other may add up


def test_inputs_that_calibration_never_used() -> None:
    x = inputs()
    x[:, 5] = 0
    found = awq(layers(), Hessian.of(x), InputStatistics.of(x).mean, Grid(4, 16))
    assert torch.isfinite(found.scales.scales).all()
    assert torch.all(found.scales.scales > 0)
    for each in found.weights:
        assert torch.isfinite(each.dequantize()).all()


def test_folded_into_what_computes_the_inputs_the_model_stays_the_same() -> None:
    """A norm before one layer, and a layer with a bias before another."""
    hidden, scales = correlated(20, 16).double(), torch.linspace(0.3, 4, 16, dtype=torch.float64)
    weight, before, bias = normal(8, 16).double(), normal(16, 16, seed=1).double(), normal(16, seed=2).double()
    norm_weight, unit = normal(16, seed=3).double(), hidden / hidden.square().mean(1, keepdim=True).sqrt()
    scaled = scale_inputs(weight, scales)

    for offset in (0, 1):
        folded = fold_into_norm(norm_weight, None, scales, unit_offset=bool(offset))
        assert folded.bias is None
        expected = (unit * (norm_weight + offset)) @ weight.T
        torch.testing.assert_close(
            (unit * (folded.weight + offset)) @ scaled.double().T, expected, rtol=1e-4, atol=1e-4
        )
    folded = fold_into_norm(norm_weight, bias, scales)
    assert folded.bias is not None
    actual = (unit * folded.weight + folded.bias) @ scaled.double().T
    torch.testing.assert_close(actual, (unit * norm_weight + bias) @ weight.T, rtol=1e-4, atol=1e-4)
    folded = fold_into_linear(before, bias, scales)
    assert folded.bias is not None
    actual = (hidden @ folded.weight.T + folded.bias) @ scaled.double().T
    torch.testing.assert_close(actual, (hidden @ before.T + bias) @ weight.T, rtol=1e-4, atol=1e-4)


def test_folding_keeps_types() -> None:
    scales = torch.full((4,), 2.0)
    folded = fold_into_norm(torch.ones(4).bfloat16(), torch.ones(4).half(), scales)
    assert folded.bias is not None
    assert (folded.weight.dtype, folded.bias.dtype) == (torch.bfloat16, torch.float16)
    assert fold_into_linear(torch.ones(4, 2).bfloat16(), None, scales).weight.tolist() == [[0.5, 0.5]] * 4


def test_gptq_of_scaled_layers_loses_less_still() -> None:
    """The two compose: scales from AWQ, integers from GPTQ."""
    weight, x, grid = layers()[0], inputs(), Grid(3, 16)
    hessian = Hessian.of(x)
    found = awq([weight], hessian, InputStatistics.of(x).mean, grid, clip=False)
    scales, outputs = found.scales.scales, x @ weight.T
    both = gptq(scale_inputs(weight, scales), hessian.scaled(1 / scales), grid).weight
    errors = [float((x / scales @ each.dequantize().T - outputs).square().sum()) for each in (both, found.weights[0])]
    assert errors[0] < 0.8 * errors[1]


def test_bad_input() -> None:
    weights, x = layers(), inputs()
    hessian, mean = Hessian.of(x), InputStatistics.of(x).mean
    with pytest.raises(ValueError, match="no weights"):
        search_scales([], hessian, mean, Grid(4))
    with pytest.raises(ValueError, match=r"layers that share an input .*\[\[24, 64\], \[4, 32\]\]"):
        search_scales([weights[0], torch.ones(4, 32)], hessian, mean, Grid(4))
    with pytest.raises(ValueError, match=r"magnitudes must be \[64\] floats"):
        search_scales(weights, hessian, mean[:60], Grid(4))
    with pytest.raises(ValueError, match="magnitudes must be finite and not negative"):
        search_scales(weights, hessian, mean * float("nan"), Grid(4))
    with pytest.raises(ValueError, match="Hessian of 64 inputs for a weight of 32"):
        search_scales([torch.ones(4, 32)], hessian, mean[:32], Grid(4))
    with pytest.raises(ValueError, match="0 points to search"):
        search_scales(weights, hessian, mean, Grid(4), points=0)
    with pytest.raises(ValueError, match="leave the output projection unscaled"):
        fold_into_linear(torch.ones(4, 8), None, torch.ones(16))
    with pytest.raises(ValueError, match="scales must be finite and positive"):
        fold_into_norm(torch.ones(4), None, torch.zeros(4))
    with pytest.raises(ValueError, match=r"scales must be \[8\] floats"):
        scale_inputs(torch.ones(4, 8), torch.ones(4))
