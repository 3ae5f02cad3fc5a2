"""fp8 weights."""

from __future__ import annotations

import itertools

import pytest
import torch
from engine_support.layer_inputs import normal

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


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="weights are NaN or infinite"):
        quantize_float8(torch.tensor([[1.0, float("inf")]]), "tensor")
