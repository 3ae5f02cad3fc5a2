"""How far a quantised layer is from its original."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.quantization.hessian import Hessian

_ROWS = 1024
"""Outputs measured at a time."""


@dataclass(frozen=True, slots=True)
class LayerError:
    """Relative squared errors: 0 is none, 1 as much as a layer of zeros makes."""

    weight: float
    """``|W - Q|**2 / |W|**2``."""
    output: float | None
    """``|W X - Q X|**2 / |W X|**2`` over the tokens of calibration; None without them."""


def layer_error(weight: Tensor, quantized: QuantizedWeight | Tensor, hessian: Hessian | None = None) -> LayerError:
    """The error of ``quantized``, or of a weight already dequantised, against ``weight`` ([out, in]).

    ``hessian``: of the inputs. Raises ValueError where shapes differ.
    """
    other = quantized.dequantize() if isinstance(quantized, QuantizedWeight) else quantized
    if other.shape != weight.shape:
        raise ValueError(f"a weight of {list(weight.shape)} became one of {list(other.shape)}")
    wrong, all_of = squared(other.float() - weight.float()), squared(weight)
    if hessian is None:
        return LayerError(_ratio(wrong, all_of), None)
    outputs = _ratio(output_energy(other.float() - weight.float(), hessian), output_energy(weight, hessian))
    return LayerError(_ratio(wrong, all_of), outputs)


def output_energy(weight: Tensor, hessian: Hessian) -> float:
    """The mean over calibration's tokens of ``|W x|**2``: ``tr(W H W')``."""
    matrix = hessian.expect(weight.shape[1]).matrix
    total = 0.0
    for start in range(0, len(weight), _ROWS):
        rows = weight[start : start + _ROWS].float()
        total += float((rows @ matrix).mul_(rows).sum(1).double().sum())
    return max(total, 0.0)


def squared(weight: Tensor) -> float:
    """The sum of squares."""
    return math.fsum(float(part.float().square().sum(1).double().sum()) for part in torch.split(weight, _ROWS))


def _ratio(wrong: float, all_of: float) -> float:
    if all_of > 0:
        return wrong / all_of
    return 0.0 if wrong == 0 else float("inf")
