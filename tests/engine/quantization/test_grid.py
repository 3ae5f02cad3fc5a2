"""Rounding to the grids of GPTQ and compressed-tensors checkpoints."""

from __future__ import annotations

import pytest
import torch
from engine_support.layer_inputs import normal
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from blade_llm.quantization import grid as grid_module
from blade_llm.quantization.grid import Grid, Ranges, weight_ranges
from blade_llm.quantization.minmax import minmax

SIZES = (None, 1, 2, 4, 8)
MAGNITUDES = st.floats(-1e4, 1e4, width=32).map(lambda value: value if abs(value) > 1e-6 else 0.0)


@st.composite
def weights(draw: st.DrawFn) -> Tensor:
    """[1..4, 8], among them rows of zeros and outliers."""
    rows = draw(st.lists(st.lists(MAGNITUDES, min_size=8, max_size=8), min_size=1, max_size=4))
    return torch.tensor(rows)


@given(weights(), st.integers(2, 8), st.sampled_from(SIZES), st.booleans())
def test_no_weight_is_off_by_more_than_half_a_step(weight: Tensor, bits: int, size: int | None, even: bool) -> None:
    quantized = Grid(bits, size, even).quantize(weight)
    assert int(quantized.integers.max()) < 2**bits
    assert (quantized.zeros is None) == even
    steps = quantized.scales.repeat_interleave(size or 8, 1)
    assert torch.all((quantized.dequantize() - weight).abs() <= steps * (0.5 + 1e-4))


@given(weights(), st.integers(2, 8), st.sampled_from(SIZES), st.booleans())
def test_rounded_weights_stay_as_they_are(weight: Tensor, bits: int, size: int | None, even: bool) -> None:
    grid = Grid(bits, size, even)
    ranges = weight_ranges(weight, grid)
    once = grid.quantize(weight, ranges)
    again = grid.quantize(once.dequantize(), ranges)
    assert torch.equal(once.integers, again.integers)
    assert torch.equal(once.scales, again.scales)


@given(weights(), st.integers(2, 8), st.sampled_from(SIZES), st.booleans())
def test_zero_stays_zero(weight: Tensor, bits: int, size: int | None, even: bool) -> None:
    """Pruned weights, and padding, stay what they are."""
    assert torch.all(Grid(bits, size, even).quantize(weight).dequantize()[weight == 0] == 0)


def test_symmetric_steps() -> None:
    """As GPTQ and compressed-tensors: 15 steps of 4 bits span twice the largest magnitude, and +7.5 steps become +7."""
    quantized = Grid(4).quantize(torch.tensor([[7.5, -7.5, 1.0, 0.4, -0.6, 1.5, 2.5]]))
    assert quantized.scales.tolist() == [[1.0]]
    assert quantized.integers.tolist() == [[15, 0, 9, 8, 7, 10, 10]]
    assert quantized.zeros is None
    assert quantized.dequantize().tolist() == [[7.0, -8.0, 1.0, 0.0, -1.0, 2.0, 2.0]]


def test_asymmetric_steps() -> None:
    """As GPTQ and compressed-tensors: all integers span the range from the smallest to the largest weight."""
    quantized = Grid(4, symmetric=False).quantize(torch.tensor([[-3.0, 12.0, 0.4, 5.6]]))
    assert quantized.zeros is not None
    assert (quantized.scales.tolist(), quantized.zeros.tolist()) == ([[1.0]], [[3]])
    assert quantized.integers.tolist() == [[0, 15, 3, 9]]


@pytest.mark.parametrize(("weight", "zero"), [(2.0, 0), (-2.0, 15)])
def test_range_of_weights_of_one_sign_reaches_to_zero(weight: float, zero: int) -> None:
    quantized = Grid(4, symmetric=False).quantize(torch.full((3, 8), weight))
    assert quantized.zeros is not None
    assert quantized.zeros.unique().tolist() == [zero]
    torch.testing.assert_close(quantized.dequantize(), torch.full((3, 8), weight))


@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_of_zero(symmetric: bool) -> None:
    quantized = Grid(3, 4, symmetric).quantize(torch.zeros(2, 8))
    assert torch.all(quantized.scales == 1)
    assert torch.all(quantized.dequantize() == 0)


def test_an_outlier_spoils_its_own_group_only() -> None:
    weight = normal(4, 64) * 0.02
    spoilt = weight.clone()
    spoilt[1, 5] = 10.0
    grid = Grid(4, 16)
    expected, actual = grid.quantize(weight).dequantize(), grid.quantize(spoilt).dequantize()
    changed = (expected != actual).reshape(4, 4, 16).any(-1)
    assert changed.nonzero().tolist() == [[1, 0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_are_rounded_to_the_scale_that_is_stored(dtype: torch.dtype, symmetric: bool) -> None:
    weight = normal(16, 64)
    quantized = Grid(4, 32, symmetric, dtype).quantize(weight)
    assert quantized.scales.dtype == dtype
    steps = quantized.scales.float().repeat_interleave(32, 1)
    clipped = 8 * torch.finfo(dtype).eps  # the ends of a range that a scale rounded down no longer reaches
    assert torch.all((quantized.dequantize() - weight).abs() <= steps * (0.5 + clipped))
    exact = Grid(4, 32, symmetric).quantize(weight).scales
    assert not torch.equal(exact, quantized.scales.float())


def test_rows_are_rounded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal(10, 32).bfloat16()
    grid = Grid(4, 8, symmetric=False)
    ranges = Ranges(*(each * 0.8 for each in weight_ranges(weight, grid)))
    expected = grid.quantize(weight, ranges)
    monkeypatch.setattr(grid_module, "ROWS", 3)
    actual = grid.quantize(weight, ranges)
    assert torch.equal(actual.integers, expected.integers)
    assert torch.equal(actual.scales, expected.scales)
    assert actual.zeros is not None
    assert expected.zeros is not None
    assert torch.equal(actual.zeros, expected.zeros)


def test_search_of_ranges_is_used() -> None:
    weight = normal(4, 32)
    grid = Grid(4, 16)

    def half(weight: Tensor, grid: Grid) -> Ranges:
        return Ranges(*(each / 2 for each in weight_ranges(weight, grid)))

    torch.testing.assert_close(minmax(weight, grid, half).scales, minmax(weight, grid).scales / 2)


@pytest.mark.parametrize("bits", [-1, 0, 1, 9, 16])
def test_bits_out_of_range(bits: int) -> None:
    with pytest.raises(ValueError, match=f"{bits} bits a weight: choose 2 to 8"):
        Grid(bits)


def test_groups_that_do_not_divide_the_inputs_are_refused() -> None:
    with pytest.raises(
        ValueError, match="groups of 128 do not divide 864 inputs: choose 32 or 16, None for whole rows"
    ):
        Grid(4, 128).quantize(torch.ones(2, 864))
    with pytest.raises(ValueError, match="groups of 0 inputs"):
        Grid(4, 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite(bad: float) -> None:
    weight = torch.ones(4, 8)
    weight[2, 3] = bad
    with pytest.raises(ValueError, match="1 of 32 weights are NaN or infinite"):
        minmax(weight, Grid(4))


@pytest.mark.parametrize("weight", [torch.ones(8), torch.ones(2, 8).int(), torch.ones(0, 8)])
def test_what_is_no_weight(weight: Tensor) -> None:
    with pytest.raises(ValueError, match=r"must be \[out, in\] floats"):
        minmax(weight, Grid(4))


def test_types_of_scales() -> None:
    with pytest.raises(ValueError, match=r"scales cannot be torch\.float64"):
        Grid(4, scale_dtype=torch.float64)
    with pytest.raises(ValueError, match=r"does not fit torch\.float16: choose bf16 or fp32"):
        Grid(2, scale_dtype=torch.float16).quantize(torch.full((1, 4), 1e6))
    tiny = Grid(4, scale_dtype=torch.float16).quantize(torch.full((1, 4), 1e-9))
    assert torch.all(tiny.dequantize().abs() <= 1e-4)


@pytest.mark.parametrize("largest", [1e-2, 1e-3])
def test_small_weights_keep_their_bits_with_scales_of_16_bits(largest: float) -> None:
    weight = normal(8, 64) * largest / 4
    halves, exact = (Grid(8, 32, scale_dtype=dtype).quantize(weight) for dtype in (torch.float16, torch.float32))
    errors = [float((each.dequantize() - weight).norm()) for each in (halves, exact)]
    assert errors[0] < 2 * errors[1]
