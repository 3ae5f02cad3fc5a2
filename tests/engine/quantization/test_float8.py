"""fp8 weights, and activations rounded to 8 bits token by token."""

from __future__ import annotations

import itertools
from typing import Literal

import pytest
import torch
from engine_support.layer_inputs import normal

from blade_llm.quantization.activations import quantize_activations, static_scale
from blade_llm.quantization.float8 import Float8Scaling, quantize_float8

SCALINGS: list[Float8Scaling] = ["tensor", "channel", "block"]


def e4m3_numbers() -> torch.Tensor:
    """All finite ones from their definition: 4 bits of exponent with bias 7, 3 of mantissa, and no infinity."""
    positive = [0.0]
    for exponent, mantissa in itertools.product(range(16), range(8)):
        if (exponent, mantissa) != (15, 7):
            positive.append(2 ** (max(exponent, 1) - 7) * ((exponent > 0) + mantissa / 8))
    return torch.tensor(sorted({*positive, *(-each for each in positive)}))


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("shape", [(300, 200), (128, 256), (5, 7), (1, 300), (300, 1)])
def test_values_are_the_nearest_numbers_to_the_scaled_weight(scaling: Float8Scaling, shape: tuple[int, int]) -> None:
    weight = normal(*shape).bfloat16()
    found = quantize_float8(weight, scaling)
    numbers = e4m3_numbers()
    assert found.values.dtype == torch.float8_e4m3fn
    assert found.block == {"tensor": shape, "channel": (1, shape[1]), "block": (128, 128)}[scaling]
    for row in range(0, shape[0], 37):
        for column in range(0, shape[1], 41):
            rows = {"tensor": slice(None), "channel": slice(row, row + 1)}.get(
                scaling, slice(row // 128 * 128, row // 128 * 128 + 128)
            )
            columns = slice(column // 128 * 128, column // 128 * 128 + 128) if scaling == "block" else slice(None)
            scale = float(weight[rows, columns].float().abs().max()) / 448
            at = {"tensor": (0, 0), "channel": (row, 0)}.get(scaling, (row // 128, column // 128))
            assert float(found.scales[at]) == pytest.approx(scale)
            wanted = float(weight[row, column]) / scale
            nearest = float((numbers - wanted).abs().min())
            assert abs(float(found.values[row, column].float()) - wanted) <= nearest + 1e-4
            assert float(found.dequantize()[row, column]) == pytest.approx(
                float(found.values[row, column].float()) * scale, rel=1e-6
            )


def test_finer_scales_lose_less() -> None:
    """Rows and blocks of which some are far smaller than others: with one scale their numbers become subnormal."""
    weight = normal(256, 256)
    weight[:128] *= 1e-4
    weight[:, :128] *= 1e-4
    errors = [
        float(((quantize_float8(weight, scaling).dequantize() - weight) / weight).abs().mean()) for scaling in SCALINGS
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.03


def test_zeros_and_values_that_rounding_takes_beyond_the_largest() -> None:
    assert torch.all(quantize_float8(torch.zeros(130, 130), "block").dequantize() == 0)
    for seed in range(50):
        assert torch.isfinite(quantize_float8(normal(3, 64, seed=seed), "channel").values.float()).all()


def test_int8_activations_of_each_token() -> None:
    x = torch.tensor([[127.0, -1.4, 0.6, 2.5], [0.0, 0.0, 0.0, 0.0], [-2.54, 1.0, 0.0, 2.54]])
    found = quantize_activations(x, "int8")
    assert found.values.tolist() == [[127, -1, 1, 2], [0, 0, 0, 0], [-127, 50, 0, 127]]
    torch.testing.assert_close(found.scales, torch.tensor([[1.0], [1.0], [0.02]]))


def test_fp8_activations_of_each_token() -> None:
    x = torch.tensor([[448.0, -17.5, 0.3], [1.0, 2.0, 4.0]])
    found = quantize_activations(x, "fp8")
    assert found.values.float().tolist() == [[448.0, -18.0, 0.3125], [112.0, 224.0, 448.0]]
    torch.testing.assert_close(found.dequantize()[1], x[1])


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_error_of_activations_is_bounded_for_each_token(kind: Literal["int8", "fp8"]) -> None:
    x = normal(50, 64) * torch.logspace(-3, 3, 50)[:, None]
    wrong = (quantize_activations(x, kind).dequantize() - x).abs()
    if kind == "int8":
        assert torch.all(wrong <= x.abs().amax(1, keepdim=True) / 127 / 2 * 1.001)
    else:
        subnormal = x.abs().amax(1, keepdim=True) / 448 * 2**-9 / 2
        assert torch.all(wrong <= torch.maximum(x.abs() * 2**-4, subnormal) * 1.001)


def test_static_scale_clips_what_calibration_did_not_see() -> None:
    scale = static_scale(torch.tensor([0.5, 1.27, 0.0]), "int8")
    found = quantize_activations(torch.tensor([[0.5, -3.0, 0.01]]), "int8", scale)
    assert found.values.tolist() == [[50, -127, 1]]
    assert list(found.scales.shape) == [1, 1]


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="weights are NaN or infinite"):
        quantize_float8(torch.tensor([[1.0, float("inf")]]), "tensor")
    with pytest.raises(ValueError, match="activations are NaN or infinite"):
        quantize_activations(torch.tensor([[1.0, float("nan")]]), "int8")
