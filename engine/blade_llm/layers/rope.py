"""The table of rotary angles."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.layers.step import Rotation
from blade_llm.spec.rope import LinearScaling, Llama3Scaling, LongRopeScaling, RopeSpec, YarnScaling


class RotaryTable:
    """Cosines and sines for all positions a request can have."""

    __slots__ = ("_axes", "cos", "sin")

    def __init__(self, spec: RopeSpec | None, head_dim: int, max_positions: int, device: torch.device) -> None:
        """``spec``: None for angles that are all zero."""
        rotary_dim = 0 if spec is None else spec.rotary_dim
        angles = torch.zeros(max_positions, 0)
        if spec is not None:
            positions = torch.arange(max_positions, dtype=torch.float32)
            angles = torch.outer(positions, inverse_frequencies(spec, max_positions))
        factor = attention_factor(spec)
        still = (0, (head_dim - rotary_dim) // 2)  # of the pairs that do not rotate
        self.cos = F.pad(angles.cos() * factor, still, value=1.0).to(device)
        self.sin = F.pad(angles.sin() * factor, still).to(device)
        axes = None if spec is None else spec.axes()
        self._axes: Tensor | None = None
        """[head_dim / 2] int64: of each pair its axis."""
        if axes is not None:
            self._axes = F.pad(torch.tensor(axes), still).to(device)

    @property
    def has_axes(self) -> bool:
        """Whether a token may have different positions on three axes."""
        return self._axes is not None

    def __call__(self, positions: Tensor, axis_positions: Tensor | None = None) -> Rotation:
        """Angles of ``positions`` ([tokens] int64); with ``axis_positions`` ([3, tokens] int64, below the table's
        number of positions), which only a rotation with sections has, those of each pair's own axis."""
        if axis_positions is None:
            return Rotation(self.cos.index_select(0, positions), self.sin.index_select(0, positions))
        assert self._axes is not None, "positions have one axis"
        rows = axis_positions.index_select(0, self._axes).t()  # [tokens, head_dim / 2]
        return Rotation(self.cos.gather(0, rows), self.sin.gather(0, rows))


def attention_factor(spec: RopeSpec | None) -> float:
    """What cosines and sines are multiplied by."""
    scaling = None if spec is None else spec.scaling
    return scaling.attention_factor if isinstance(scaling, YarnScaling | LongRopeScaling) else 1.0


def inverse_frequencies(spec: RopeSpec, max_positions: int) -> Tensor:
    """Radians per position for each pair of dimensions: [rotary_dim / 2] fp32. ``max_positions``: that are served."""
    exponents = torch.arange(0, spec.rotary_dim, 2, dtype=torch.float32) / spec.rotary_dim
    frequencies = torch.pow(spec.theta, exponents).reciprocal()
    match spec.scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case Llama3Scaling() as llama3:
            return _llama3(frequencies, llama3)
        case YarnScaling() as yarn:
            return _yarn(frequencies, yarn, spec)
        case LongRopeScaling() as long:
            factors = long.long if max_positions > long.original_positions else long.short
            return (torch.tensor(factors) * torch.pow(spec.theta, exponents)).reciprocal()


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Keep short wavelengths, divide the frequency of long ones, and blend in between."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    periods = scaling.original_positions * frequencies / (2 * math.pi)  # turns within the original context
    keep = ((periods - low) / (high - low)).clamp(0.0, 1.0)
    return keep * frequencies + (1.0 - keep) * frequencies / scaling.factor


def _yarn(frequencies: Tensor, scaling: YarnScaling, spec: RopeSpec) -> Tensor:
    """Keep what turns often within the original context, divide what turns seldom, with a ramp between."""

    def dimension(turns: float) -> float:
        """The pair that turns so often within the original context."""
        return (
            spec.rotary_dim * math.log(scaling.original_positions / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))
        )

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.rotary_dim - 1)
    if low == high:
        high += 0.001
    divided = ((torch.arange(spec.rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies / scaling.factor * divided + frequencies * (1.0 - divided)
