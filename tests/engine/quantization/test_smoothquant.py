"""SmoothQuant for 8-bit activations, SmoothQuant+ for 4-bit weights, and GPTQ after smoothing."""

from __future__ import annotations

import math

import pytest
import torch
from engine_support.layer_inputs import correlated, normal, with_outliers
from torch import Tensor

from blade_llm.kernels.linear.activations import Activations
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.quantization.folding import scale_inputs
from blade_llm.quantization.gptq import GptqOptions, gptq
from blade_llm.quantization.grid import Grid
from blade_llm.quantization.hessian import Hessian
from blade_llm.quantization.input_statistics import InputStatistics
from blade_llm.quantization.minmax import minmax
from blade_llm.quantization.smoothquant import smoothing_scales, smoothquant
from blade_llm.quantization.smoothquant_gptq import smoothquant_gptq
from blade_llm.quantization.smoothquant_plus import ALPHAS, GRID, search_alpha

OUTLIERS = [3, 17, 40]


def layers(seed: int = 0) -> list[Tensor]:
    return [normal(48, 64, seed=seed), normal(16, 64, seed=seed + 1)]


def inputs(seed: int = 0) -> Tensor:
    return with_outliers(correlated(200, 64, seed), OUTLIERS, 50.0)


def most(x: Tensor) -> Tensor:
    return InputStatistics.of(x).most


def product(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """W8A8: rounded tokens times the rounded weight."""
    return Activations("int8").rounded(x) @ weight.dequantize().T


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).square().sum() / expected.square().sum())


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.85, 1.0])
def test_scales_are_those_of_the_paper(alpha: float) -> None:
    """Eq. 4, with the largest weight of all layers that share the input."""
    weights, x = layers(), inputs()
    scales = smoothing_scales(weights, most(x), alpha)
    for channel in range(64):
        of_x = max(abs(float(value)) for value in x[:, channel])
        of_w = max(abs(float(value)) for weight in weights for value in weight[:, channel])
        assert float(scales[channel]) == pytest.approx(of_x**alpha / of_w ** (1 - alpha), rel=1e-4)


def test_exponent_of_one_half_makes_both_equally_large() -> None:
    weights, x = layers(), inputs()
    scales = smoothing_scales(weights, most(x), 0.5)
    largest = torch.stack([scale_inputs(each, scales).abs().amax(0) for each in weights]).amax(0)
    torch.testing.assert_close(largest, most(x / scales))


@pytest.mark.parametrize("seed", range(4))
def test_smoothed_w8a8_loses_less_than_naive_w8a8_with_outliers(seed: int) -> None:
    weights, x = layers(seed), inputs(seed)
    smoothed = smoothquant(weights, most(x))
    for weight, quantized in zip(weights, smoothed.weights, strict=True):
        assert quantized.bits == 8
        assert quantized.groups == 1
        expected = x @ weight.T
        naive = relative(product(x, minmax(weight, Grid(8))), expected)
        assert relative(product(x / smoothed.scales, quantized), expected) < 0.5 * naive


def test_gptq_after_smoothing_loses_less_than_rounding() -> None:
    weights, x, grid = layers(), inputs(), Grid(4)
    rounded = smoothquant(weights, most(x), 0.5, grid)
    found = smoothquant_gptq(weights, Hessian.of(x), most(x), 0.5, grid)
    assert torch.equal(found.scales, rounded.scales)
    expected = x @ torch.cat(weights).T
    smooth = x / found.scales
    nearest = torch.cat([each.dequantize() for each in rounded.weights])
    error = relative(smooth @ found.result.weight.dequantize().T, expected)
    assert error < 0.7 * relative(smooth @ nearest.T, expected)
    assert relative(product(smooth, found.result.weight), expected) < relative(
        product(x, gptq(torch.cat(weights), Hessian.of(x), grid).weight), expected
    )


def test_gptq_after_smoothing_is_gptq_of_the_smoothed_layer() -> None:
    weights, x = layers(), inputs()
    options, grid = GptqOptions(act_order=True), Grid(4, 16, symmetric=False)
    found = smoothquant_gptq(weights, Hessian.of(x), most(x), 0.6, grid, options)
    scaled = torch.cat([each * found.scales for each in weights])
    expected = gptq(scaled, Hessian.of(x / found.scales), grid, options)
    differ = (found.result.weight.dequantize() - expected.weight.dequantize()).abs() > 1e-4
    assert int(differ.any(1).sum()) <= 3
    assert found.result.loss == pytest.approx(expected.loss, rel=0.02)


def test_inputs_without_activations_or_weights_are_not_scaled() -> None:
    weights, x = layers(), inputs()
    x[:, 5] = 0
    for weight in weights:
        weight[:, 9] = 0
    scales = smoothing_scales(weights, most(x), 0.7)
    assert (float(scales[5]), float(scales[9])) == (1.0, 1.0)
    assert torch.isfinite(scales).all()


def test_search_of_one_exponent_for_a_model() -> None:
    """A model of two layers with a nonlinearity between, in 4 bits: the search finds the best of all exponents."""
    first, second, x = normal(32, 64), normal(8, 32, seed=1), inputs()
    middle = torch.relu(x @ first.T)
    middle[:, 4] *= 40
    expected = torch.relu(x @ first.T)
    expected[:, 4] *= 40
    expected = expected @ second.T
    grid = Grid(4, 32, symmetric=False)

    def loss(alpha: float) -> float:
        one, two = smoothquant([first], most(x), alpha, grid), smoothquant([second], most(middle), alpha, grid)
        between = torch.relu(x / one.scales @ one.weights[0].dequantize().T)
        between[:, 4] *= 40
        return relative(between / two.scales @ two.weights[0].dequantize().T, expected)

    done: list[tuple[int, int]] = []
    found = search_alpha(loss, progress=lambda *each: done.append(each))
    assert found.losses == {alpha: loss(alpha) for alpha in ALPHAS}
    assert found.losses[found.alpha] == min(map(loss, ALPHAS))
    assert done == [(number, 21) for number in range(1, 22)]
    between = torch.relu(x @ minmax(first, grid).dequantize().T)
    between[:, 4] *= 40
    assert found.losses[found.alpha] < 0.7 * relative(between @ minmax(second, grid).dequantize().T, expected)


def test_losses_that_are_no_numbers_are_passed_over() -> None:
    found = search_alpha(lambda alpha: math.nan if alpha < 0.5 else alpha)
    assert found.alpha == 0.5
    assert found.losses[0.0] == math.inf
    assert search_alpha(lambda alpha: 1.0, [0.7, 0.2]).alpha == 0.2
    with pytest.raises(ValueError, match="no exponent gives a finite loss"):
        search_alpha(lambda alpha: math.inf)


def test_not_to_smooth_is_chosen_unless_an_exponent_loses_less() -> None:
    found = search_alpha(lambda alpha: 1.0 + alpha, [0.0, 0.5], unsmoothed=1.0)
    assert (found.alpha, found.losses) == (None, {None: 1.0, 0.0: 1.0, 0.5: 1.5})
    assert search_alpha(lambda alpha: 1.0 + alpha, [0.0, 0.5], unsmoothed=1.1).alpha == 0.0
    assert search_alpha(lambda alpha: 1.0 + alpha, [0.0, 0.5], unsmoothed=math.nan).alpha == 0.0
    assert search_alpha(lambda alpha: math.nan, unsmoothed=7.0).alpha is None


def test_grid_of_smoothquant_plus() -> None:
    assert (GRID.bits, GRID.group_size, GRID.symmetric) == (4, 128, False)
    assert (ALPHAS[0], ALPHAS[1], ALPHAS[-1], len(ALPHAS)) == (0.0, 0.05, 1.0, 21)


def test_bad_input() -> None:
    weights, x = layers(), inputs()
    for alpha in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"choose 0 .* to 1"):
            smoothing_scales(weights, most(x), alpha)
    with pytest.raises(ValueError, match=r"most must be \[64\] floats"):
        smoothing_scales(weights, most(x)[:3])
    with pytest.raises(ValueError, match="no weights"):
        smoothquant([], most(x))
    with pytest.raises(ValueError, match="NaN or infinite"):
        smoothquant([weights[0] * math.nan], most(x))
    for alphas in ([], [0.5, 1.5]):
        with pytest.raises(ValueError, match="exponents to search must be from 0 to 1"):
            search_alpha(lambda alpha: 1.0, alphas)
