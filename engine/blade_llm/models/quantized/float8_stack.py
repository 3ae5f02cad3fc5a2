"""Weights of 8-bit floats under each other: the same numbers exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

import torch
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight


def float8_stackable(weights: Sequence[object]) -> TypeGuard[Sequence[Float8Weight]]:
    """Whether :func:`stack_float8` makes one weight of them."""
    found = [each for each in weights if isinstance(each, Float8Weight)]
    if len(found) < len(weights):
        return False
    first = found[0]
    return all(
        (each.inputs, _columns(each), each.scales.dtype, each.activations)
        == (first.inputs, _columns(first), first.scales.dtype, first.activations)
        for each in found
    )


def stack_float8(weights: Sequence[Float8Weight]) -> Float8Weight:
    """All outputs, one weight under the other. Blocks stay where they fill all weights but the last, else each output
    gets scales of its own."""
    first = weights[0]
    if len(weights) == 1:
        return first
    rows = first.block[0]
    whole = all(each.block[0] == rows and each.outputs % rows == 0 for each in weights[:-1])
    whole = whole and weights[-1].block[0] == rows
    return replace(
        first,
        values=torch.cat([each.values.view(torch.uint8) for each in weights]).view(torch.float8_e4m3fn),
        scales=torch.cat([each.scales if whole else _of_outputs(each) for each in weights]),
        block=(rows if whole else 1, first.block[1]),
    )


def _columns(weight: Float8Weight) -> int:
    return min(weight.block[1], weight.inputs)


def _of_outputs(weight: Float8Weight) -> Tensor:
    """[out, blocks of inputs]"""
    return weight.scales.repeat_interleave(weight.block[0], dim=0)[: weight.outputs]
