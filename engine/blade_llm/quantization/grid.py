"""The grid of integers that weights are rounded to, as GPTQ and compressed-tensors checkpoints define it.

Symmetric: integers from 0 to ``2**bits - 1`` around a zero point in the middle, ``2**(bits - 1)``; the largest
magnitude of a group falls half a step outside and is clipped. Asymmetric: the group's range, widened to hold zero,
spans all integers, and its zero point is one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from blade_llm.kernels.linear.quantized import MAX_BITS, MIN_BITS, SCALE_DTYPES, QuantizedWeight
from blade_llm.quantization.checks import check_weight

ROWS = 4096
"""Outputs that are rounded at a time, so that the fp32 copies stay small beside the weight."""


class Ranges(NamedTuple):
    """What the integers of each group span; weights outside are clipped."""

    low: Tensor
    """[out, groups] fp32, at most zero."""
    high: Tensor
    """[out, groups] fp32, at least zero."""


class Steps(NamedTuple):
    """Scale and zero point of each group."""

    scales: Tensor
    """[out, groups] of the grid's scale type."""
    zeros: Tensor
    """[out, groups] fp32, whole numbers."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How many bits a weight has, and which weights share a scale.

    Raises ValueError for bits, groups or types that cannot be.
    """

    bits: int
    """2 to 8."""
    group_size: int | None = None
    """Inputs that share a scale; None: all inputs of an output."""
    symmetric: bool = True
    scale_dtype: torch.dtype = torch.float32
    """Scales are rounded to it first, and weights to multiples of the rounded scale."""

    def __post_init__(self) -> None:
        if not MIN_BITS <= self.bits <= MAX_BITS:
            raise ValueError(f"{self.bits} bits a weight: choose {MIN_BITS} to {MAX_BITS}")
        if self.group_size is not None and self.group_size < 1:
            raise ValueError(f"groups of {self.group_size} inputs: choose at least 1, or None for whole rows")
        if self.scale_dtype not in SCALE_DTYPES:
            raise ValueError(f"scales cannot be {self.scale_dtype}: choose fp16, bf16 or fp32")

    @property
    def most(self) -> int:
        """The largest integer."""
        return (1 << self.bits) - 1

    def group_of(self, inputs: int) -> int:
        """Inputs of a group in a layer with ``inputs``.

        Raises ValueError where groups do not divide them: no format pads groups in the same way.
        """
        if self.group_size is None:
            return inputs
        if inputs % self.group_size:
            fits = [size for size in (128, 64, 32, 16) if not inputs % size]
            raise ValueError(
                f"groups of {self.group_size} do not divide {inputs} inputs: choose "
                + (f"{' or '.join(map(str, fits))}, " if fits else "")
                + "None for whole rows, or leave this layer unquantised"
            )
        return self.group_size

    def grouped(self, weight: Tensor) -> Tensor:
        """[out, groups, group] fp32 of ``weight`` ([out, in])."""
        return weight.float().reshape(len(weight), -1, self.group_of(weight.shape[1]))

    def steps(self, ranges: Ranges) -> Steps:
        """Scales and zero points that span ``ranges``.

        Raises ValueError where a scale overflows the grid's scale type.
        """
        low, high = ranges
        scales = torch.maximum(-low, high) / (self.most / 2) if self.symmetric else (high - low) / self.most
        limits = torch.finfo(self.scale_dtype)
        least = max(limits.smallest_normal * limits.eps, torch.finfo(torch.float32).smallest_normal)
        scales = scales.where(scales > 0, torch.ones_like(scales)).clamp_min(least)
        if scales.numel() and float(scales.max()) > limits.max:
            raise ValueError(
                f"a scale of {float(scales.max()):.3g} does not fit {self.scale_dtype}: choose bf16 or fp32"
            )
        scales = scales.to(self.scale_dtype)
        if self.symmetric:
            return Steps(scales, torch.full(scales.shape, float(1 << (self.bits - 1)), device=scales.device))
        return Steps(scales, (-low / scales.float()).round_().clamp_(0, self.most))

    def nearest(self, weight: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
        """The nearest integers in fp32; halves go to even. Scales (fp32) and zeros broadcast against the weight."""
        return (weight / scales).round_().add_(zeros).clamp_(0, self.most)

    def quantize(self, weight: Tensor, ranges: Ranges | None = None) -> QuantizedWeight:
        """Round ``weight`` ([out, in], any float) to the nearest of the grid.

        ``ranges``: of each group; by default those of its weights, so that nothing is clipped by more than half a step.
        Raises ValueError for weights that are not finite, and groups that do not divide the inputs.
        """
        check_weight(weight)
        size = self.group_of(weight.shape[1])
        integers = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
        parts = []
        for start in range(0, len(weight), ROWS):
            rows = slice(start, start + ROWS)
            groups = self.grouped(weight[rows])
            steps = self.steps(ranges_of(groups) if ranges is None else Ranges(ranges.low[rows], ranges.high[rows]))
            parts.append(steps)
            integers[rows] = self.nearest(groups, steps.scales.float()[..., None], steps.zeros[..., None]).flatten(1)
        steps = Steps(torch.cat([each.scales for each in parts]), torch.cat([each.zeros for each in parts]))
        return self.stored(integers, steps, size)

    def stored(self, integers: Tensor, steps: Steps, group_size: int, order: Tensor | None = None) -> QuantizedWeight:
        """``integers`` ([out, in] uint8) of this grid as a weight."""
        zeros = None if self.symmetric else steps.zeros.to(torch.uint8)
        return QuantizedWeight(self.bits, integers, steps.scales, zeros, group_size, order)


RangeSearch = Callable[[Tensor, Grid], Ranges]
"""Ranges of ``weight`` ([out, in] fp32) for a grid; :func:`weight_ranges`, or one that searches for better ones."""


def ranges_of(groups: Tensor) -> Ranges:
    """The ranges of ``groups`` ([out, groups, group] fp32), with zero inside."""
    return Ranges(groups.amin(-1).clamp_max_(0), groups.amax(-1).clamp_min_(0))


def weight_ranges(weight: Tensor, grid: Grid) -> Ranges:
    """All that the weights span: the :data:`RangeSearch` that searches nothing."""
    return ranges_of(grid.grouped(weight))
