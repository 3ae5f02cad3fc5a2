"""GPTQ: rounding column by column, each time correcting the columns left (Frantar et al., arXiv 2210.17323)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.quantization.checks import check_weight
from blade_llm.quantization.grid import Grid, RangeSearch, Steps, weight_ranges
from blade_llm.quantization.hessian import Hessian
from blade_llm.quantization.inverse_factor import LEAST_DAMPING, inverse_factor

BLOCK = 128
"""Columns after which the rest of the matrix is corrected, by one product of matrices (§3.3, step 2)."""
ROWS = 2048
"""Outputs quantised at a time. They do not depend on each other, so this bounds memory and nothing else."""


@dataclass(frozen=True, slots=True)
class GptqOptions:
    """How GPTQ goes about it."""

    damping: float = LEAST_DAMPING
    """Share of the mean of the Hessian's diagonal that is added to the diagonal."""
    act_order: bool = False
    """Columns with the largest activations first, while all others can still make good their errors."""
    static_groups: bool = False
    """Scales of all groups from the original weight instead of from the corrected one when their first column's turn
    comes. With ``act_order`` the groups then stay consecutive inputs, which is faster to multiply with."""
    block: int = BLOCK

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"blocks of {self.block} columns: choose at least 1, such as {BLOCK}")


@dataclass(frozen=True, slots=True, eq=False)
class GptqResult:
    """A quantised weight, and what became of its errors."""

    weight: QuantizedWeight
    loss: float
    """The mean over tokens of the squared error of all outputs, with the damped Hessian."""
    damping: float
    """The damping used: more than was asked for where the Hessian stayed singular."""
    unused: int
    """Inputs that calibration never used."""
    notes: tuple[str, ...]
    """What a user should know of the calibration."""


def gptq(
    weight: Tensor,
    hessian: Hessian,
    grid: Grid,
    options: GptqOptions = GptqOptions(),
    search: RangeSearch = weight_ranges,
) -> GptqResult:
    """Quantise ``weight`` ([out, in], any float) so that its outputs for the calibration's inputs change little.

    ``hessian``: of the inputs. ``search``: finds the ranges of groups. Layers that share their input are best given
    as one weight, one above the other, and the result to :func:`split`: the Hessian is factorised once.

    The weight of an input that calibration never used is rounded to nearest (the authors' code sets it to zero), for
    other texts may use it. Raises ValueError for weights that are not finite, groups that do not divide the inputs and
    a Hessian of another layer.
    """
    check_weight(weight)
    inputs = weight.shape[1]
    size = grid.group_of(inputs)
    order = None
    if options.act_order:
        order = hessian.expect(inputs).matrix.diagonal().argsort(descending=True, stable=True)
    factor = inverse_factor(hessian.expect(inputs), options.damping, order)
    rows = [
        _quantize_rows(part.float(), factor.upper, order, grid, options, search) for part in torch.split(weight, ROWS)
    ]
    integers = torch.cat([each.integers for each in rows])
    steps = Steps(torch.cat([each.steps.scales for each in rows]), torch.cat([each.steps.zeros for each in rows]))
    if order is not None and (options.static_groups or size == inputs):
        integers, order = integers[:, order.argsort()], None
    return GptqResult(
        weight=grid.stored(integers, steps, size, order),
        loss=sum(each.loss for each in rows),
        damping=factor.damping,
        unused=factor.unused,
        notes=factor.notes,
    )


def split(weight: QuantizedWeight, outputs: Sequence[int]) -> list[QuantizedWeight]:
    """The layers that ``weight`` has one above the other, of so many ``outputs`` each.

    Raises ValueError where these are not all.
    """
    if sum(outputs) != weight.outputs:
        raise ValueError(f"layers of {list(outputs)} outputs are not those of a weight of {weight.outputs}")
    layers, first = [], 0
    for count in outputs:
        rows = slice(first, first + count)
        zeros = None if weight.zeros is None else weight.zeros[rows]
        layers.append(replace(weight, integers=weight.integers[rows], scales=weight.scales[rows], zeros=zeros))
        first += count
    return layers


@dataclass(frozen=True, slots=True, eq=False)
class _Rounded:
    integers: Tensor
    """[out, in] uint8, in the order of quantisation."""
    steps: Steps
    loss: float


def _quantize_rows(
    weight: Tensor, upper: Tensor, order: Tensor | None, grid: Grid, options: GptqOptions, search: RangeSearch
) -> _Rounded:
    """Quantise some outputs ([out, in] fp32) of the weight."""
    outputs, inputs = weight.shape
    size = grid.group_of(inputs)
    # A copy, which is corrected as it goes, and in which a column is read in one piece.
    columns = weight.T.clone(memory_format=torch.contiguous_format) if order is None else weight.T[order]
    regrouped = options.static_groups and order is not None
    group_of = ((order.cpu() if order is not None and regrouped else torch.arange(inputs)) // size).tolist()
    groups = _unbound(grid.steps(search(weight, grid))) if options.static_groups else []
    one_group = Grid(grid.bits, None, grid.symmetric, grid.scale_dtype)
    integers = torch.empty(inputs, outputs, dtype=torch.uint8, device=weight.device)
    errors = torch.empty(min(options.block, inputs), outputs, device=weight.device)
    diagonal = upper.diagonal().tolist()
    loss = 0.0
    for start in range(0, inputs, options.block):
        end = min(start + options.block, inputs)
        for column in range(start, end):
            # Errors of this block are subtracted from a column when its turn comes, those of blocks before already are.
            done, factors = errors[: column - start], upper[start:column]
            if group_of[column] == len(groups):
                members = slice(column, column + size)
                corrected = torch.addmm(columns[members], factors[:, members].T, done, alpha=-1).T
                groups += _unbound(one_group.steps(search(corrected, one_group)))
            scales, zeros = groups[group_of[column]]
            value = torch.addmv(columns[column], done.T, factors[:, column], alpha=-1)
            nearest = grid.nearest(value, scales.float(), zeros)
            integers[column] = nearest
            value.sub_(nearest.sub_(zeros).mul_(scales))
            torch.div(value, diagonal[column], out=errors[column - start])
        of_block = errors[: end - start]
        columns[end:].addmm_(upper[start:end, end:].T, of_block, alpha=-1)
        loss += float(of_block.square().sum(0).double().sum())
    steps = Steps(torch.stack([each.scales for each in groups], 1), torch.stack([each.zeros for each in groups], 1))
    return _Rounded(integers.T.contiguous(), steps, loss)


def _unbound(steps: Steps) -> list[Steps]:
    """Of each group, [out]."""
    return [Steps(*each) for each in zip(steps.scales.T.contiguous(), steps.zeros.T.contiguous(), strict=True)]
