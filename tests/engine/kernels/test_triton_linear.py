"""Products of few rows in Triton against torch in fp32; what they do not serve is torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from engine_support.triton_interpreter import DEVICE

import engine_support.triton_products  # noqa: F401  isort: skip
from blade_llm.kernels.linear import triton as kernels


def inputs(rows: int, outputs: int, depth: int, dtype: torch.dtype, biased: bool) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(rows + outputs + depth)
    x, weight, bias = (
        torch.randn(*shape, generator=generator).to(DEVICE, dtype)
        for shape in ((rows, depth), (outputs, depth), (outputs,))
    )
    return [x, weight, bias if biased else None]


def check(arguments: list[torch.Tensor | None]) -> None:
    result = kernels.linear(*arguments)
    exact = F.linear(*(None if each is None else each.float() for each in arguments))
    assert result.dtype == arguments[0].dtype
    assert result.shape == exact.shape
    assert (result.float() - exact).norm() < 4e-3 * exact.norm()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("outputs", "depth"), [(4, 16), (68, 1024), (20, 1040), (12, 8448)])
def test_one_row(outputs: int, depth: int, dtype: torch.dtype, biased: bool) -> None:
    check(inputs(1, outputs, depth, dtype, biased))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [2, 16, 17, 32])
def test_few_rows(rows: int, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_LEAST_PROGRAMS", 1)
    for outputs, depth in ((128, 384), (64, 128)):
        check(inputs(rows, outputs, depth, torch.bfloat16, biased))


def test_rows_beside_each_other_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that the kernel of a few rows computes: each row's sums have the same order."""
    monkeypatch.setattr(kernels, "_LEAST_PROGRAMS", 1)
    x, weight, bias = inputs(16, 64, 256, torch.bfloat16, True)
    assert x is not None
    whole = kernels.linear(x, weight, bias)
    assert torch.equal(kernels.linear(x[3:5], weight, bias), whole[3:5])


@pytest.mark.parametrize(
    ("rows", "outputs", "depth", "dtype"),
    [
        (33, 64, 128, torch.bfloat16),  # too many rows
        (2, 64, 128, torch.bfloat16),  # too few programs
        (1, 6, 128, torch.bfloat16),  # outputs
        (1, 64, 24, torch.bfloat16),  # inputs
        (1, 64, 128, torch.float32),
        (0, 64, 128, torch.bfloat16),
    ],
    ids=str,
)
def test_others_are_left_to_torch(
    rows: int, outputs: int, depth: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = inputs(rows, outputs, depth, dtype, biased=True)
    expected = F.linear(*arguments)
    for kernel in ("_one_row_kernel", "_few_rows_kernel"):
        monkeypatch.setattr(kernels, kernel, None)
    assert torch.equal(kernels.linear(*arguments), expected)
