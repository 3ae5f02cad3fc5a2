"""Multiplying inputs' weights by scales, and dividing what comes before by them: the model computes the same."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from blade_llm.quantization.checks import check_per_input, check_weight


class Folded(NamedTuple):
    """Parameters of what computes the inputs."""

    weight: Tensor
    bias: Tensor | None


def scale_inputs(weight: Tensor, scales: Tensor) -> Tensor:
    """``weight`` ([out, in]) for inputs that are divided by ``scales`` ([in]), in fp32."""
    check_weight(weight)
    check_per_input("scales", scales, weight.shape[1], positive=True)
    return weight.float() * scales.float()


def fold_into_norm(weight: Tensor, bias: Tensor | None, scales: Tensor, *, unit_offset: bool = False) -> Folded:
    """A norm ([in], with its bias if it has one) whose results are divided by ``scales`` ([in]), in the norm's types.

    ``unit_offset``: the norm multiplies by ``1 + weight``. Raises ValueError where they are not of equal size.
    """
    check_per_input("scales", scales, len(weight), positive=True)
    offset = 1.0 if unit_offset else 0.0
    divided = (weight.float() + offset) / scales.float() - offset
    return Folded(divided.to(weight.dtype), None if bias is None else (bias.float() / scales.float()).to(bias.dtype))


def fold_into_linear(weight: Tensor, bias: Tensor | None, scales: Tensor) -> Folded:
    """A linear layer ([in of the next, in]) whose results are divided by ``scales`` ([in of the next]), in its types.

    Raises ValueError where they are not as many: heads of values that several query heads share are such a case, and
    their output projection cannot be scaled.
    """
    check_weight(weight)
    if len(scales) != len(weight):
        raise ValueError(
            f"{len(scales)} scales for {len(weight)} outputs: values that several query heads share cannot be scaled "
            "for each of them, so leave the output projection unscaled"
        )
    check_per_input("scales", scales, len(weight), positive=True)
    divided = weight.float() / scales.float()[:, None]
    return Folded(divided.to(weight.dtype), None if bias is None else (bias.float() / scales.float()).to(bias.dtype))
