"""Some rows and columns of quantised weights, and several under each other: the same numbers exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

import torch
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.models.errors import UnsupportedModelError

Weight = QuantizedWeight | Float8Weight


def select_rows(weight: Weight, rows: Sequence[int] | None) -> Weight:
    """The weight of some outputs, in this order; None: all."""
    if rows is None:
        return weight

    def some(tensor: Tensor) -> Tensor:
        if isinstance(rows, range) and rows.step == 1:
            return tensor[rows.start : rows.stop]
        return tensor.index_select(0, torch.tensor(tuple(rows), device=tensor.device))

    if isinstance(weight, Float8Weight):
        scale_of = some(torch.arange(weight.outputs, device=weight.scales.device) // weight.block[0])
        return replace(weight, values=some(weight.values), scales=weight.scales[scale_of], block=(1, weight.block[1]))
    zeros = None if weight.zeros is None else some(weight.zeros)
    return replace(weight, integers=some(weight.integers), scales=some(weight.scales), zeros=zeros)


def slice_columns(weight: Weight, columns: range | None, name: str) -> Weight:
    """The weight of some inputs; where they divide groups, of smaller ones with the same scales.

    Raises :class:`UnsupportedModelError` for one with act-order, whose groups are no ranges of inputs.
    """
    if columns is None or columns == range(weight.inputs):
        return weight
    if isinstance(weight, Float8Weight):
        return _float8_columns(weight, columns)
    if weight.order is not None:
        raise UnsupportedModelError(f"{name} is quantised with act-order: ranks cannot divide its inputs")
    integers = weight.integers[:, columns.start : columns.stop]
    if weight.groups == 1:
        return replace(weight, integers=integers, group_size=len(columns))
    groups, size = _groups_of(columns, weight.group_size, integers.device)
    zeros = None if weight.zeros is None else weight.zeros[:, groups]
    return replace(weight, integers=integers, scales=weight.scales[:, groups], zeros=zeros, group_size=size)


def _float8_columns(weight: Float8Weight, columns: range) -> Float8Weight:
    values = weight.values[:, columns.start : columns.stop]
    rows, size = weight.block
    if size >= weight.inputs:
        return replace(weight, values=values, block=(rows, len(columns)))
    groups, size = _groups_of(columns, size, values.device)
    return replace(weight, values=values, scales=weight.scales[:, groups], block=(rows, size))


def _groups_of(columns: range, group_size: int, device: torch.device) -> tuple[Tensor, int]:
    """The group of each of the equal parts that ``columns`` have of groups, and the size of these parts."""
    size = math.gcd(group_size, columns.start, len(columns))
    return torch.arange(columns.start, columns.stop, size, device=device) // group_size, size


def stackable(weights: Sequence[object]) -> TypeGuard[Sequence[QuantizedWeight]]:
    """Whether :func:`stack` makes one weight of them."""
    if not all(isinstance(each, QuantizedWeight) for each in weights):
        return False
    affine = [each for each in weights if isinstance(each, QuantizedWeight)]
    return _alike(affine)


def _alike(weights: Sequence[QuantizedWeight]) -> bool:
    first = weights[0]
    if any((each.bits, each.group_size) != (first.bits, first.group_size) for each in weights):
        return False
    if any(each.activations != first.activations for each in weights):
        return False
    if any(each.scales.dtype != first.scales.dtype for each in weights):
        return False
    orders = [each.order for each in weights]
    if first.order is None:
        return all(order is None for order in orders)
    return all(order is not None and torch.equal(order, first.order) for order in orders)


def stack(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """All outputs, one weight under the other."""
    first = weights[0]
    if len(weights) == 1:
        return first
    zeros: Tensor | None = None
    if any(each.zeros is not None for each in weights):
        zeros = torch.cat([_zeros(each) for each in weights])
    return replace(
        first,
        integers=torch.cat([each.integers for each in weights]),
        scales=torch.cat([each.scales for each in weights]),
        zeros=zeros,
    )


def _zeros(weight: QuantizedWeight) -> Tensor:
    if weight.zeros is not None:
        return weight.zeros
    return torch.full(weight.scales.shape, weight.middle, dtype=torch.uint8, device=weight.scales.device)
