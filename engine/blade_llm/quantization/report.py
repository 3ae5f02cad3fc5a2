"""How far a quantised layer is from its original."""

from __future__ import annotations

from dataclasses import dataclass

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
    wrong, all_of = [0.0, 0.0], [0.0, 0.0]  # of weights and of outputs
    for start in range(0, len(weight), _ROWS):
        rows = weight[start : start + _ROWS].float()
        off = other[start : start + _ROWS].float() - rows
        for sums, part in ((wrong, off), (all_of, rows)):
            sums[0] += float(part.square().sum(1).double().sum())
            sums[1] += 0.0 if hessian is None else output_energy(part, hessian)
    return LayerError(_ratio(wrong[0], all_of[0]), None if hessian is None else _ratio(wrong[1], all_of[1]))


def output_energy(weight: Tensor, hessian: Hessian) -> float:
    """The mean over calibration's tokens of ``|W x|**2``: ``tr(W H W')``."""
    matrix = hessian.expect(weight.shape[1]).matrix
    total = 0.0
    for start in range(0, len(weight), _ROWS):
        rows = weight[start : start + _ROWS].float()
        total += float((rows @ matrix).mul_(rows).sum(1).double().sum())
    return max(total, 0.0)


def _ratio(wrong: float, all_of: float) -> float:
    if all_of > 0:
        return wrong / all_of
    return 0.0 if wrong == 0 else float("inf")
