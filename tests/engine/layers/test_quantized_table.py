"""Rows of a quantised embedding table are those of the whole one, made floats."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from engine_support.quantized_checkpoints import round_weight
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.layers.quantized_table import QuantizedTable

ROWS, HIDDEN = 50, 96
IDS = torch.tensor([7, 0, 49, 7, 31])


def table() -> Tensor:
    return torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(8, HIDDEN), (4, HIDDEN), (4, 32), (3, 32), (5, 16)])
def test_integers(bits: int, group: int, symmetric: bool) -> None:
    rounded = round_weight(table(), bits, group, symmetric=symmetric)
    zeros = None if symmetric else rounded.zeros.to(torch.uint8)
    weight = QuantizedWeight(bits, rounded.integers.to(torch.uint8), rounded.scales, zeros, group)
    kept = QuantizedTable(weight, torch.float32)
    assert torch.equal(kept.rows(IDS), rounded.weight()[IDS])
    share = 2 if bits <= 4 else 1
    others = rounded.scales.nbytes + (0 if zeros is None else zeros.nbytes)
    assert kept.nbytes == ROWS * HIDDEN // share + others


def test_integers_are_not_kept_beside_their_halves() -> None:
    integers = np.zeros((ROWS, HIDDEN), np.uint8)
    freed = weakref.ref(integers)
    weight = QuantizedWeight(4, torch.from_numpy(integers), torch.ones(ROWS, 1), None, HIDDEN)
    kept = QuantizedTable(weight, torch.float32)
    del integers, weight
    assert freed() is None
    assert kept.rows(IDS).eq(-8.0).all()


def test_inputs_in_the_order_of_their_activations() -> None:
    rounded = round_weight(table(), 4, HIDDEN, symmetric=True)
    order = torch.randperm(HIDDEN, generator=torch.Generator().manual_seed(4))
    integers = rounded.integers[:, order].to(torch.uint8)
    weight = QuantizedWeight(4, integers, rounded.scales, None, HIDDEN, order)
    assert torch.equal(QuantizedTable(weight, torch.float32).rows(IDS), rounded.weight()[IDS])


@pytest.mark.parametrize("block", [(1, HIDDEN), (ROWS, HIDDEN), (16, 32), (20, 40)])
def test_floats(block: tuple[int, int]) -> None:
    """Also in blocks that do not divide the table."""
    sizes = [-(-size // part) for size, part in zip((ROWS, HIDDEN), block, strict=True)]
    scales = torch.rand(sizes, generator=torch.Generator().manual_seed(5)) + 0.1
    weight = Float8Weight(table().to(torch.float8_e4m3fn), scales, block)
    assert torch.equal(QuantizedTable(weight, torch.float32).rows(IDS), weight.dequantize()[IDS])
    half = QuantizedTable(weight, torch.bfloat16)
    assert torch.equal(half.rows(IDS), weight.dequantize()[IDS].bfloat16())
    assert half.nbytes == ROWS * HIDDEN + scales.nbytes
