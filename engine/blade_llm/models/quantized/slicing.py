"""Quantised weights of some outputs and inputs, and several under each other: the same numbers exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

import torch
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.spec.quantization.weights import GROUP_PART

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


def of_consecutive_groups(
    bits: int, integers: Tensor, scales: Tensor, zeros: Tensor | None, group_size: int, inputs: range
) -> QuantizedWeight:
    """The weight of ``inputs``, of which each ``group_size`` of the whole weight's share a scale; where they begin or
    end within a group, of smaller groups with the same scales.

    ``integers``: [out, inputs]; ``scales`` and ``zeros``: [out, groups] of all groups that have any of the inputs.
    """
    groups, size = _groups_of(inputs, group_size, scales.device)
    if len(groups) == scales.shape[1]:
        return QuantizedWeight(bits, integers, scales, zeros, size)
    zeros = None if zeros is None else zeros[:, groups]
    return QuantizedWeight(bits, integers, scales[:, groups], zeros, size)


def of_groups(
    bits: int, integers: Tensor, scales: Tensor, zeros: Tensor | None, group_size: int, group_of: Tensor
) -> QuantizedWeight:
    """The weight of inputs that each belong to some group (act-order), which ``group_of`` ([in] int64) says.

    A rank has any number of a group's inputs. Kernels know groups of one size: each is then filled up to a multiple of
    32 columns, or of what divides both that and ``group_size``, with zeros.
    ``integers``: [out, in]; ``scales`` and ``zeros``: [out, groups] of all groups.
    """
    order, counts = torch.argsort(group_of, stable=True), group_of.bincount(minlength=scales.shape[1])
    integers, there = integers[:, order], counts.nonzero()[:, 0]
    if len(there) < len(counts):
        counts, scales, zeros = counts[there], scales[:, there], None if zeros is None else zeros[:, there]
    if bool((counts[:-1] == group_size).all()):
        return QuantizedWeight(bits, integers, scales, zeros, group_size, order)
    size = math.gcd(*counts.tolist())
    if size % GROUP_PART:
        size = math.gcd(group_size, GROUP_PART)
    parts = -(-counts // size)
    group_of_part = torch.arange(len(counts), device=counts.device).repeat_interleave(parts)
    # Where each input's column is: among those of its group, after what the groups before it are filled up to.
    within = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    places = ((parts.cumsum(0) - parts) * size).repeat_interleave(counts) + within
    zeros = None if zeros is None else zeros[:, group_of_part].contiguous()
    if zeros is None:
        columns = len(group_of_part) * size
        filled = torch.full((len(integers), columns), 1 << (bits - 1), dtype=torch.uint8, device=integers.device)
    else:
        filled = zeros.repeat_interleave(size, dim=1)
    filled[:, places] = integers
    whole_order = torch.zeros(filled.shape[1], dtype=torch.int64, device=order.device)
    whole_order[places] = order
    return QuantizedWeight(
        bits, filled, scales[:, group_of_part].contiguous(), zeros, size, whole_order, used=len(order)
    )


def float8_part(values: Tensor, scales: Tensor, block: tuple[int, int], outputs: range, inputs: range) -> Float8Weight:
    """The weight of some outputs and inputs of one in blocks; where they begin within blocks, of smaller ones with the
    same scales.

    ``values``: [outputs, inputs]; ``scales``: of all blocks that have any of them.
    """
    rows, columns = block
    blocks = -(-outputs.stop // rows) - outputs.start // rows, -(-inputs.stop // columns) - inputs.start // columns
    scales = scales.reshape(blocks)
    if outputs.start % rows:
        index = torch.arange(outputs.start, outputs.stop, device=scales.device) // rows - outputs.start // rows
        scales, rows = scales[index], 1
    if inputs.start % columns:
        groups, columns = _groups_of(inputs, columns, scales.device)
        scales = scales[:, groups]
    return Float8Weight(values, scales, (rows, columns))


def _groups_of(inputs: range, group_size: int, device: torch.device) -> tuple[Tensor, int]:
    """The group, counted from that of the first input on, of each of the equal parts that ``inputs`` have of groups,
    and the size of these parts; the last part may be shorter where inputs begin with a group."""
    first = inputs.start // group_size
    size = math.gcd(group_size, inputs.start, len(inputs)) if inputs.start % group_size else group_size
    return torch.arange(inputs.start, inputs.stop, size, device=device) // group_size - first, size


def under_each_other(weights: Sequence[Weight]) -> Weight:
    """All outputs, one part of the same weight with the same inputs under the other."""
    first = weights[0]
    if len(weights) == 1:
        return first
    if isinstance(first, QuantizedWeight):
        return stack([each for each in weights if isinstance(each, QuantizedWeight)])
    parts = [select_rows(each, range(each.outputs)) for each in weights if isinstance(each, Float8Weight)]
    rows = [each for each in parts if isinstance(each, Float8Weight)]
    values, scales = (torch.cat([getattr(each, name) for each in rows]) for name in ("values", "scales"))
    return Float8Weight(values, scales, rows[0].block)


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
