"""Checks of what quantisation is given: weights, activations and scales."""

from __future__ import annotations

import torch
from torch import Tensor


def check_weight(weight: Tensor) -> None:
    """Raises ValueError unless ``weight`` is [out, in] of finite floats, neither of them zero."""
    if weight.dim() != 2 or not weight.dtype.is_floating_point or not weight.numel():
        raise ValueError(f"a weight to quantise must be [out, in] floats, not {list(weight.shape)} {weight.dtype}")
    if not torch.isfinite(weight).all():
        raise ValueError(
            f"{int((~torch.isfinite(weight)).sum())} of {weight.numel()} weights are NaN or infinite: the "
            "checkpoint is damaged, or overflowed when it was converted"
        )


def check_weights(weights: tuple[Tensor, ...]) -> None:
    """Raises ValueError unless ``weights`` are of layers that share their input."""
    if not weights:
        raise ValueError("no weights: a group of layers that share an input has at least one")
    for weight in weights:
        check_weight(weight)
    if len({weight.shape[1] for weight in weights}) > 1:
        raise ValueError(
            f"layers that share an input have equally many of them, not {[list(weight.shape) for weight in weights]}"
        )


def checked_rows(x: Tensor, inputs: int) -> Tensor:
    """``x`` ([..., in]) as [tokens, in].

    Raises ValueError where it has another number of inputs, or values that are not finite.
    """
    if x.dim() < 1 or x.shape[-1] != inputs or not x.dtype.is_floating_point:
        raise ValueError(f"activations must be [..., {inputs}] floats, not {list(x.shape)} {x.dtype}")
    if not torch.isfinite(x).all():
        raise ValueError(
            f"{int((~torch.isfinite(x)).sum())} of {x.numel()} calibration activations are NaN or infinite: "
            "calibrate in bf16 or fp32 if the model overflows in fp16"
        )
    return x.reshape(-1, inputs)


def check_per_input(name: str, values: Tensor, inputs: int, *, positive: bool = False) -> None:
    """Raises ValueError unless ``values`` are [inputs] finite floats that are not negative (``positive``: nor zero)."""
    if list(values.shape) != [inputs] or not values.dtype.is_floating_point:
        raise ValueError(f"{name} must be [{inputs}] floats, not {list(values.shape)} {values.dtype}")
    if not torch.isfinite(values).all() or (values < 0).any() or (positive and (values == 0).any()):
        raise ValueError(f"{name} must be finite and {'positive' if positive else 'not negative'}")
