"""The magnitudes of a layer's inputs during calibration, from which AWQ and SmoothQuant choose their scales."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blade_llm.quantization.checks import checked_rows


@dataclass(frozen=True, slots=True, eq=False)
class InputStatistics:
    """Magnitudes over all tokens of calibration."""

    most: Tensor
    """[in] fp32: max |x|."""
    mean: Tensor
    """[in] fp32: mean |x|."""
    tokens: int

    @classmethod
    def of(cls, x: Tensor) -> InputStatistics:
        """Of activations ``x`` ([..., in]) that are all there."""
        accumulator = InputStatisticsAccumulator(x.shape[-1], device=x.device)
        accumulator.add(x)
        return accumulator.finish()


class InputStatisticsAccumulator:
    """Collects them batch by batch."""

    def __init__(self, inputs: int, *, device: torch.device | str = "cpu") -> None:
        self.inputs = inputs
        self.tokens = 0
        self._most = torch.zeros(inputs, device=device)
        self._sum = torch.zeros(inputs, dtype=torch.float64, device=device)

    def add(self, x: Tensor) -> None:
        """Count in ``x`` ([..., in], any float).

        Raises ValueError where it has another number of inputs, or values that are not finite; nothing is added then.
        """
        magnitudes = checked_rows(x, self.inputs).float().abs()
        if not len(magnitudes):
            return
        self.tokens += len(magnitudes)
        torch.maximum(self._most, magnitudes.amax(0), out=self._most)
        self._sum += magnitudes.sum(0, dtype=torch.float64)

    def finish(self) -> InputStatistics:
        """What was seen so far. Raises ValueError where nothing was."""
        if not self.tokens:
            raise ValueError("calibration is empty: the layer saw no activations. Give texts, or more of them")
        return InputStatistics(self._most.clone(), (self._sum / self.tokens).float(), self.tokens)
