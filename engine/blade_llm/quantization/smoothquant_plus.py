"""SmoothQuant+: one smoothing exponent for the whole model, the one with which 4-bit weights lose least (Pan et al.,
arXiv 2312.03788). The layers are then smoothed and rounded group by group as
:func:`blade_llm.quantization.smoothquant.smoothquant` does with a 4-bit grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blade_llm.quantization.grid import Grid

ALPHAS = tuple(point / 20 for point in range(21))
"""The paper's search: 0 to 1 by 0.05."""
GRID = Grid(4, 128, symmetric=False)
"""4 bits in groups of 128."""


@dataclass(frozen=True, slots=True)
class AlphaSearch:
    """The exponent found."""

    alpha: float | None
    """None: not to smooth at all."""
    losses: dict[float | None, float]
    """Loss of the whole model for each exponent tried, and for None where that was; infinite where it was not a
    number."""


def search_alpha(
    loss: Callable[[float], float],
    alphas: Sequence[float] = ALPHAS,
    *,
    unsmoothed: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AlphaSearch:
    """The exponent with the least ``loss``, the smaller one of equals.

    ``loss``: of the whole model with every layer smoothed by that exponent and quantised, such as the squared
    difference of its outputs from the original's. ``unsmoothed``: the loss without any scales, which is chosen unless
    an exponent has less. The paper does not try that, and none of its exponents is that: 0 still makes the largest
    weights of all inputs equal, which on a model without outliers is worse than plain rounding. ``progress``: called
    with the exponents done and their number. Raises ValueError for exponents outside 0 to 1, and where no loss is
    finite.
    """
    if not alphas or not all(0 <= alpha <= 1 for alpha in alphas):
        raise ValueError(f"exponents to search must be from 0 to 1, not {list(alphas)}")
    losses: dict[float | None, float] = {}
    if unsmoothed is not None:
        losses[None] = unsmoothed if math.isfinite(unsmoothed) else math.inf
    for done, alpha in enumerate(alphas, 1):
        value = float(loss(alpha))
        losses[alpha] = value if math.isfinite(value) else math.inf
        if progress is not None:
            progress(done, len(alphas))
    best = min(losses, key=lambda alpha: (losses[alpha], -1.0 if alpha is None else alpha))
    if math.isinf(losses[best]):
        raise ValueError("no exponent gives a finite loss: the model overflows on the calibration, try it in fp32")
    return AlphaSearch(best, losses)
