"""Linear layers whose activations are rounded to 8 bits as well as the weight (W8A8)."""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.gpu.float8 import LEAST_DEPTH, depth_of, fp8_linear, multiplies_float8
from blade_llm.kernels.linear.gpu.int8 import MOST_INPUTS, int8_linear
from blade_llm.kernels.linear.quantized import QuantizedWeight


def why_not_rounded(weight: QuantizedWeight | Float8Weight, group_size: int | None) -> str:
    """In words, why the kernels do not multiply by ``weight`` activations that are rounded in groups of ``group_size``
    (None: by token), to int8 or e4m3 as the weight is; empty where they do."""
    if isinstance(weight, Float8Weight):
        if not multiplies_float8(weight.values.device):
            return "a GPU without FP8"
        depth = depth_of(weight.inputs, weight.block[1], group_size)
        return f"groups of {weight.block[1]} and {group_size}" if depth < LEAST_DEPTH else ""
    if weight.zeros is not None:
        return "zero points"
    if weight.groups > 1 or group_size is not None:
        return "integers in groups"
    return f"{weight.inputs} inputs" if weight.inputs > MOST_INPUTS else ""


class RoundedLinear:
    """int8 times int8, or e4m3 times e4m3."""

    __slots__ = (
        "_bias",
        "_block",
        "_deterministic",
        "_group_size",
        "_input_scale",
        "_order",
        "_scales",
        "_weight",
        "nbytes",
    )

    def __init__(
        self,
        weight: QuantizedWeight | Float8Weight,
        bias: Tensor | None,
        dtype: torch.dtype,
        *,
        input_scale: float | None = None,
        group_size: int | None = None,
        deterministic: bool = False,
    ) -> None:
        """``dtype``: of activations and results, bf16 or fp16. ``input_scale``, ``group_size``: how activations are
        rounded, as of :func:`~blade_llm.kernels.linear.gpu.rounding.round_rows`. :func:`why_not_rounded` must have
        nothing against it."""
        device = weight.scales.device
        self._block: tuple[int, int] | None = None
        self._order: Tensor | None = None
        if isinstance(weight, Float8Weight):
            self._weight, self._scales, self._block = (
                weight.values.contiguous(),
                weight.scales.contiguous(),
                weight.block,
            )
            if weight.scales.shape[1] == 1 and weight.block[0] >= weight.outputs:
                self._scales, self._block = (
                    weight.scales.float().expand(weight.outputs, 1).contiguous(),
                    (1, weight.inputs),
                )
        else:
            self._weight = (weight.integers.view(torch.int8) - weight.middle).contiguous()
            self._scales, self._order = weight.scales[:, 0].contiguous(), weight.order
        self._bias = None if bias is None else bias.to(dtype).contiguous()
        self._input_scale = None if input_scale is None else torch.tensor([input_scale], device=device)
        self._group_size, self._deterministic = group_size, deterministic
        kept = (self._weight, self._scales, self._order, self._bias)
        self.nbytes = sum(tensor.nbytes for tensor in kept if tensor is not None)

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] to [tokens, out], same type."""
        if self._order is not None:
            x = x.index_select(1, self._order)
        if self._block is None:
            return int8_linear(x, self._weight, self._scales, self._input_scale, self._bias)
        return fp8_linear(
            x,
            self._weight,
            self._scales,
            self._block,
            self._input_scale,
            self._bias,
            group_size=self._group_size,
            deterministic=self._deterministic,
        )
