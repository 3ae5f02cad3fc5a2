"""Second moments of a layer's inputs, summed up batch by batch: what GPTQ calls the Hessian.

The squared error of a layer's outputs is ``tr(D H D')`` for weights wrong by ``D`` and ``H = E[x x']``. So ``H`` is all
that has to be kept of calibration, however many tokens it has.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.quantization.checks import check_per_input, checked_rows

BUFFERED_ROWS = 1024
"""Tokens that are summed up at once. Few of them would cost as much time for reading and writing the matrix."""
BAND = 512
"""Rows of the matrix that are summed up at once, from the diagonal on: what lies below it is equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Hessian:
    """The mean of ``x x'`` over the tokens of calibration, half the Hessian of the mean squared error."""

    matrix: Tensor
    """[in, in] fp32, symmetric, positive semidefinite."""
    tokens: int

    @property
    def inputs(self) -> int:
        return len(self.matrix)

    @classmethod
    def of(cls, x: Tensor) -> Hessian:
        """Of activations ``x`` ([..., in]) that are all there."""
        accumulator = HessianAccumulator(x.shape[-1], device=x.device)
        accumulator.add(x)
        return accumulator.finish()

    def expect(self, inputs: int) -> Hessian:
        """Itself. Raises ValueError unless it is of ``inputs``."""
        if self.inputs != inputs:
            raise ValueError(f"a Hessian of {self.inputs} inputs for a weight of {inputs}: it is another layer's")
        return self

    def scaled(self, factors: Tensor) -> Hessian:
        """Of the inputs times ``factors`` ([in])."""
        check_per_input("factors", factors, self.inputs, positive=True)
        factors = factors.float()
        return Hessian(self.matrix * factors * factors[:, None], self.tokens)

    def blocks(self, size: int) -> Tensor:
        """[in / size, size, size]: the blocks on the diagonal."""
        count = self.inputs // size
        return self.matrix.reshape(count, size, count, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1).contiguous()


class HessianAccumulator:
    """Sums up ``x x'``; keeps the sum and at most :data:`BUFFERED_ROWS` tokens."""

    def __init__(self, inputs: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:
        """``dtype``: of the sum, fp32 or fp64. In fp32 its relative error grows by about 6e-8 with the square root of
        the number of batches of :data:`BUFFERED_ROWS`: far below what damping changes."""
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"sums cannot be {dtype}: choose fp32 or fp64")
        self.inputs = inputs
        self.tokens = 0
        self._sum = torch.zeros(inputs, inputs, dtype=dtype, device=device)
        self._buffer = torch.empty(BUFFERED_ROWS, inputs, dtype=dtype, device=device)
        self._buffered = 0

    def add(self, x: Tensor) -> None:
        """Count in ``x`` ([..., in], any float).

        Raises ValueError where it has another number of inputs, or values that are not finite; nothing is added then.
        """
        rows = checked_rows(x, self.inputs)
        self.tokens += len(rows)
        for part in torch.split(rows, BUFFERED_ROWS):
            if self._buffered + len(part) > BUFFERED_ROWS:
                self._flush()
            self._buffer[self._buffered : self._buffered + len(part)] = part
            self._buffered += len(part)

    def finish(self, *, last: bool = False) -> Hessian:
        """What was seen so far. ``last``: nothing is added any more, so that the sum itself becomes the Hessian.

        Raises ValueError where nothing was, and where squares overflowed.
        """
        if not self.tokens:
            raise ValueError(
                "calibration is empty: the layer saw no activations. Give texts, or more of them if the layer is an "
                "expert that none of their tokens chose"
            )
        self._flush()
        matrix = (self._sum.div_(self.tokens) if last else self._sum / self.tokens).float()
        for end in range(BAND, self.inputs, BAND):
            matrix[end:, end - BAND : end] = matrix[end - BAND : end, end:].T
        if not all(torch.isfinite(rows).all() for rows in torch.split(matrix, BAND)):
            raise ValueError("squares of calibration activations overflow fp32: the model's outputs cannot be trusted")
        return Hessian(matrix, self.tokens)

    def _flush(self) -> None:
        rows = self._buffer[: self._buffered]
        for start in range(0, self.inputs, BAND):
            band = slice(start, start + BAND)
            self._sum[band, start:].addmm_(rows[:, band].T, rows[:, start:])
        self._buffered = 0
