"""The error of one weight."""

from __future__ import annotations

import math

import pytest
import torch

from blade_llm.quantize.compress import compress
from blade_llm.quantize.options import QuantizeOptions

FORMS = {
    "8 bits": QuantizeOptions(),
    "4 bits, groups": QuantizeOptions(bits=4, group_size=32),
    "zero points": QuantizeOptions(bits=4, group_size=32, symmetric=False),
    "fp8": QuantizeOptions(dtype="fp8"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1e-20, 1e19, 1e30, 1e37])
def test_large_and_small_weights_have_the_error_of_others(form: str, scale: float) -> None:
    """Where their squares are beyond fp32."""
    weight = torch.rand(200, 64, generator=torch.Generator().manual_seed(1)) - 0.5
    usual = compress(weight, FORMS[form]).error
    assert 0 < usual < 0.2
    assert compress(weight * scale, FORMS[form]).error == pytest.approx(usual, rel=1e-2)


def test_all_rows_count() -> None:
    """Each row once, of more than are taken at a time and not a multiple of them."""
    weight = torch.rand(1024 + 70, 64, generator=torch.Generator().manual_seed(1)) - 0.5
    errors = [compress(row[None], FORMS["8 bits"]).error * row.double().norm().item() for row in weight]
    expected = math.sqrt(sum(error**2 for error in errors)) / weight.double().norm().item()
    assert compress(weight, FORMS["8 bits"]).error == pytest.approx(expected, rel=1e-9)


def test_weights_that_are_infinite_when_rounded() -> None:
    """8 bits round the smallest to -128 steps, where the scale is of 127.5."""
    weight = torch.full((1, 64), -torch.finfo(torch.float32).max)
    with pytest.raises(ValueError, match="rounded, its largest weights are more than their type can hold"):
        compress(weight, FORMS["8 bits"])
