"""Linear layers as calibration computes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_support.layer_inputs import normal

from blade_llm.kernels.linear.activations import Activations
from blade_llm.kernels.linear.affine import AffineLinear
from blade_llm.kernels.linear.float8 import Float8Linear
from blade_llm.quantization.float8 import quantize_float8
from blade_llm.quantization.grid import Grid
from blade_llm.quantization.minmax import minmax
from blade_llm.quantize.calibration.recording import ActivationKind, CalibrationLinear


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_inputs_are_rounded_as_they_are_when_served(kind: ActivationKind) -> None:
    weight, x = normal(24, 64), normal(50, 64, seed=1)
    if kind == "int8":
        integers = replace(minmax(weight, Grid(8, None, True)), activations=Activations(kind))
        served, values = AffineLinear(integers, None)(x), integers.dequantize()
    else:
        floats = replace(quantize_float8(weight, "channel"), activations=Activations(kind))
        served, values = Float8Linear(floats, None)(x), floats.dequantize()
    seen = CalibrationLinear(values, None, "", None, kind)(x)
    torch.testing.assert_close(seen, served, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_inputs_that_are_no_numbers_are_said(kind: ActivationKind) -> None:
    x = normal(2, 8)
    x[1, 3] = torch.inf
    with pytest.raises(ValueError, match="1 of 16 calibration activations are NaN or infinite"):
        CalibrationLinear(normal(4, 8), None, "", None, kind)(x)
