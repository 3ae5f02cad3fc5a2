"""Where patches are: learned positions that are added to them, and rotary ones in attention."""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.spec.vision.tower import VisionSpec


class LearnedPositions:
    """A table of positions of a square image, which others interpolate bilinearly, corner to corner."""

    __slots__ = ("side", "table")

    def __init__(self, table: Tensor, side: int) -> None:
        """``table``: [side * side, width]."""
        self.table = table
        self.side = side

    def __call__(self, rows: Tensor, columns: Tensor, height: int, width: int) -> Tensor:
        """What is added to the patches at ``rows`` and ``columns`` ([patches] int64 each) of ``height`` x ``width``:
        [patches, width] fp32."""
        upper, lower, down = self._between(rows, height)
        left, right, across = self._between(columns, width)
        table, side = self.table, self.side
        total = table[upper * side + left] * ((1.0 - down) * (1.0 - across)).unsqueeze(1)
        total += table[upper * side + right] * ((1.0 - down) * across).unsqueeze(1)
        total += table[lower * side + left] * (down * (1.0 - across)).unsqueeze(1)
        total += table[lower * side + right] * (down * across).unsqueeze(1)
        return total

    def _between(self, index: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """The two lines of the table around each index of an axis of ``size`` patches, and the weight of the second."""
        place = index.to(torch.float32) * (self.side - 1) / max(size - 1, 1)
        low = place.floor()
        first = low.to(torch.int64)
        return first, (first + 1).clamp_(max=self.side - 1), place - low


def axial_angles(spec: VisionSpec, rows: Tensor, columns: Tensor) -> Tensor:
    """Angles of the pairs of dimensions of a head: the first half of them turns with the row, the other with the
    column.

    ``rows``, ``columns``: [patches] int64. Returns [patches, head_dim / 2] fp32; dimension ``i`` rotates with
    ``i + head_dim / 2``.
    """
    assert spec.rope_theta is not None
    half = spec.head_dim // 2
    exponents = torch.arange(0, half, 2, dtype=torch.float32, device=rows.device) / half
    frequencies = torch.pow(spec.rope_theta, exponents).reciprocal()
    return torch.cat([torch.outer(rows.float(), frequencies), torch.outer(columns.float(), frequencies)], dim=1)
