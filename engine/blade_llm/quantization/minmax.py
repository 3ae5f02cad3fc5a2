"""Round to nearest between the smallest and largest weight of each group: no calibration."""

from __future__ import annotations

from torch import Tensor

from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.quantization.grid import Grid, RangeSearch


def minmax(weight: Tensor, grid: Grid, search: RangeSearch | None = None) -> QuantizedWeight:
    """``weight`` ([out, in], any float) rounded to ``grid``.

    ``search``: finds narrower ranges, as :func:`blade_llm.quantization.clipping.least_weight_error`. Raises ValueError
    as :meth:`Grid.quantize`.
    """
    return grid.quantize(weight, None if search is None else search(weight, grid))
