"""The triangular factor of the inverse Hessian, all that GPTQ needs of it (arXiv 2210.17323, §3.3, step 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.quantization.hessian import Hessian

LEAST_DAMPING = 0.01
"""Tried first where the damping asked for leaves the Hessian singular, then ten times as much, and so on."""
_COLUMNS = 256
"""Columns inverted at a time."""
_CHUNK = 1 << 20
"""Values moved at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class InverseFactor:
    """``upper' upper`` is the inverse of the damped Hessian.

    Row ``i`` of ``upper``, from its diagonal on, is that of the inverse of what is left of the Hessian after the
    columns before ``i`` were removed one by one, but for a factor: so all steps of the algorithm read one matrix.
    """

    upper: Tensor
    """[in, in] fp32, upper triangular, in the order of quantisation."""
    damping: float
    """What was added to the diagonal, as a share of its mean."""
    unused: int
    """Inputs that were zero in all of calibration. Their weights change no output there and are rounded to nearest."""
    notes: tuple[str, ...]
    """What a user should know of the calibration."""


def inverse_factor(hessian: Hessian, damping: float = LEAST_DAMPING, order: Tensor | None = None) -> InverseFactor:
    """Factorise the inverse of ``hessian`` with ``damping`` times the mean of its diagonal added to it.

    ``order``: [in] int64, the inputs as they are quantised; by default 0, 1, … A Hessian that stays singular is damped
    more, and ``notes`` say so. Raises ValueError for a Hessian or a damping that is not finite, or a negative damping.

    With the matrix turned upside down as ``L L'``, the factor is ``L``'s inverse turned back: one Cholesky
    factorisation instead of two and an inverse, with less rounding. At most two matrices exist, ``hessian`` included.
    """
    if not math.isfinite(damping) or damping < 0:
        raise ValueError(f"a damping of {damping}: choose a share of the mean of the diagonal, such as {LEAST_DAMPING}")
    if not torch.isfinite(hessian.matrix).all():
        raise ValueError("the Hessian holds NaN or infinite numbers: those of the calibration's activations")
    inputs = hessian.inputs
    turned = torch.arange(inputs - 1, -1, -1) if order is None else order.flip(0)
    turned = turned.to(hessian.matrix.device)
    notes: list[str] = []
    unused_inputs = hessian.matrix.diagonal() <= 0
    unused = int(unused_inputs.sum())
    mean = _mean_of_used(hessian.matrix.diagonal(), unused_inputs)
    if unused:
        notes.append(
            f"{unused} of {inputs} inputs were zero in all of calibration: their weights are rounded to nearest"
        )
    if hessian.tokens < inputs:
        notes.append(f"{hessian.tokens} tokens are fewer than {inputs} inputs: the Hessian is singular but for damping")
    asked = damping
    while True:
        # Column by column in memory, as LAPACK wants it, so that the factor takes the matrix's place.
        lower = torch.empty(inputs, inputs, device=turned.device).mT
        for rows, some in zip(torch.split(lower, _COLUMNS), torch.split(turned, _COLUMNS), strict=True):
            rows.copy_(hessian.matrix[some[:, None], turned])
        lower.diagonal().add_(mean * unused_inputs[turned] + mean * damping)
        info = torch.empty((), dtype=torch.int32, device=lower.device)
        torch.linalg.cholesky_ex(lower, out=(lower, info))
        # A pivot as small as the rounding of the matrix is none.
        least = inputs * torch.finfo(torch.float32).eps * mean
        if not int(info) and float(lower.diagonal().square().min()) > least:
            break
        damping = max(damping * 10, LEAST_DAMPING)
    if damping != asked:
        notes.append(f"the Hessian is singular with a damping of {asked:g}: raised to {damping:g}")
    _invert_triangular(lower)
    by_columns = lower.mT.contiguous()  # as LAPACK leaves it: no copy
    _reverse(by_columns.view(-1))
    return InverseFactor(by_columns.mT, damping, unused, tuple(notes))


def _invert_triangular(lower: Tensor) -> None:
    """Replace ``lower``, a lower triangular matrix, by its inverse, from the last columns to the first."""
    size = len(lower)
    for start in reversed(range(0, size, _COLUMNS)):
        end = min(start + _COLUMNS, size)
        corner = lower[start:end, start:end]
        corner.copy_(torch.linalg.solve_triangular(corner, torch.eye(end - start, device=lower.device), upper=False))
        below = lower[end:, start:end]
        below.copy_(lower[end:, end:] @ (below @ corner).neg_())


def _reverse(values: Tensor) -> None:
    """Reverse ``values`` ([n]) in place: of a contiguous matrix, both rows and columns."""
    count = len(values)
    for start in range(0, count // 2, _CHUNK):
        end = min(start + _CHUNK, count // 2)
        first, last = values[start:end], values[count - end : count - start]
        kept = first.flip(0)
        first.copy_(last.flip(0))
        last.copy_(kept)


def _mean_of_used(diagonal: Tensor, unused: Tensor) -> float:
    used = diagonal[~unused]
    return float(used.mean()) if len(used) else 1.0
