"""Activations rounded to 8 bits: the reference, with numbers worked out by hand."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from engine_support.layer_inputs import normal

from blade_llm.kernels.linear.activations import Activations


def test_int8_of_each_token() -> None:
    """Scales of 1, of nothing, and of 0.02: the largest magnitude is 127.5 of them, which ties to even."""
    x = torch.tensor([[127.5, -1.4, 0.6, 2.5], [0.0, 0.0, 0.0, 0.0], [-2.55, 1.0, 0.0, 2.55]])
    expected = torch.tensor([[127.0, -1.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0], [-2.56, 1.0, 0.0, 2.54]])
    torch.testing.assert_close(Activations("int8").rounded(x), expected)


def test_fp8_of_each_token() -> None:
    x = torch.tensor([[448.0, -17.5, 0.3], [1.0, 2.0, 4.0]])
    found = Activations("fp8").rounded(x)
    assert found[0].tolist() == [448.0, -18.0, 0.3125]
    torch.testing.assert_close(found[1], x[1])


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_the_error_is_bounded_for_each_token(kind: Literal["int8", "fp8"]) -> None:
    x = normal(50, 64) * torch.logspace(-3, 3, 50)[:, None]
    wrong = (Activations(kind).rounded(x) - x).abs()
    if kind == "int8":
        assert torch.all(wrong <= x.abs().amax(1, keepdim=True) / 127.5 / 2 * 1.001)
    else:
        subnormal = x.abs().amax(1, keepdim=True) / 448 * 2**-9 / 2
        assert torch.all(wrong <= torch.maximum(x.abs() * 2**-4, subnormal) * 1.001)


def test_a_static_scale_clips_what_calibration_did_not_see() -> None:
    found = Activations("int8", 0.01).rounded(torch.tensor([[0.5, -3.0, 3.0, 0.012]]))
    torch.testing.assert_close(found, torch.tensor([[0.5, -1.28, 1.27, 0.01]]))


def test_senseless_values_are_refused() -> None:
    for scale in (0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="a scale of activations must be positive and finite"):
            Activations("int8", scale)
        with pytest.raises(ValueError, match="the largest activation must be positive and finite"):
            Activations("fp8", most=scale)
    with pytest.raises(ValueError, match="no scale from the checkpoint"):
        Activations("int8", 0.1, 32)
    with pytest.raises(ValueError, match="without a scale"):
        Activations("fp8", 0.1, most=1.0)
