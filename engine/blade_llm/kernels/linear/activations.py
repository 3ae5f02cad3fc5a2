"""Activations rounded to 8 bits before they are multiplied: the reference, as compressed-tensors' fake quantisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

INT8_STEPS: Final = 127.5
"""Half the steps of 8 bits: the largest magnitude of a row becomes 127 or -128."""
FP8_MOST: Final = 448.0
LEAST_SCALE: Final = 2.0**-23
"""The scale of zeros."""


@dataclass(frozen=True, slots=True)
class Activations:
    """How the inputs of a linear layer are rounded, token by token. Raises ValueError for senseless values."""

    kind: Literal["int8", "fp8"]
    """Integers from -128 to 127, or e4m3."""
    scale: float | None = None
    """Of all activations (static); None: that with which the largest magnitude of a token, or a group, is the largest
    value there is (dynamic)."""
    group_size: int | None = None
    """Inputs of a token that share a scale; the last ones may be fewer. None: all. Not with ``scale``."""
    most: float | None = None
    """The largest magnitude that a dynamic scale is made for; larger values, infinite ones too, become it. None: any.
    FBGEMM's ``scale_ub``."""

    def __post_init__(self) -> None:
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise ValueError(f"a scale of activations must be positive and finite, not {self.scale}")
        if self.group_size is not None and (self.group_size < 1 or self.scale is not None):
            raise ValueError("groups of activations have at least one input, and no scale from the checkpoint")
        if self.most is not None and (not 0 < self.most < float("inf") or self.scale is not None):
            raise ValueError(f"the largest activation must be positive and finite, without a scale, not {self.most}")

    def rounded(self, x: Tensor) -> Tensor:
        """[tokens, in] to fp32 [tokens, in]: 8-bit values times their scales. Groups that are not finite become NaN;
        with a scale from the checkpoint, NaN stays and infinite values are clipped."""
        values = x.to(torch.float32, copy=True)
        if self.most is not None:
            values.clamp_(-self.most, self.most)
        if self.group_size is None or self.group_size >= x.shape[1]:
            return self._round_(values)
        for begin in range(0, x.shape[1], self.group_size):
            self._round_(values[:, begin : begin + self.group_size])
        return values

    def _round_(self, values: Tensor) -> Tensor:
        """In place, with one scale a row."""
        if not values.numel():
            return values
        most = INT8_STEPS if self.kind == "int8" else FP8_MOST
        scale: Tensor | float
        if self.scale is not None:
            scale = torch.tensor(self.scale, dtype=torch.float32, device=values.device)
        else:
            least, largest = torch.aminmax(values, dim=1, keepdim=True)
            scale = torch.maximum(-least, largest) / most
            scale = torch.where(scale == 0, LEAST_SCALE, scale)
        values.div_(scale)
        if self.kind == "int8":
            values.clamp_(-128, 127).round_()
        else:
            values.clamp_(-FP8_MOST, FP8_MOST)
            values.copy_(values.to(torch.float8_e4m3fn))
        return values.mul_(scale)
