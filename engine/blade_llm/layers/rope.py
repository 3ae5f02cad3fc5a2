"""The table of rotary angles: the default rule, linear position interpolation (Chen et al., arXiv 2306.15595), and
Llama 3's, which stretches only the long wavelengths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from blade_llm.layers.step import Rotation


class RotaryTable:
    """Cosines and sines for all positions a request can have."""

    __slots__ = ("cos", "sin")

    def __init__(
        self, theta: float, scaling: Mapping[str, Any], head_dim: int, max_positions: int, device: torch.device
    ) -> None:
        """``scaling``: as in :class:`~blade_llm.models.config.RopeConfig`."""
        frequencies = inverse_frequencies(theta, scaling, head_dim)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
        self.cos = angles.cos().to(device)
        self.sin = angles.sin().to(device)

    def __call__(self, positions: Tensor) -> Rotation:
        """Angles of ``positions`` ([tokens] int64)."""
        return Rotation(self.cos.index_select(0, positions), self.sin.index_select(0, positions))


def inverse_frequencies(theta: float, scaling: Mapping[str, Any], head_dim: int) -> Tensor:
    """Radians per position for each pair of dimensions: [head_dim / 2] fp32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = torch.pow(theta, exponents).reciprocal()
    if not scaling:
        return frequencies
    if scaling["rope_type"] == "linear":
        return frequencies / float(scaling["factor"])
    # llama3: keep short wavelengths, divide the frequency of long ones, and blend in between
    context, factor = float(scaling["original_max_position_embeddings"]), float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    periods = context * frequencies / (2 * math.pi)  # turns within the original context
    keep = ((periods - low) / (high - low)).clamp(0.0, 1.0)
    return keep * frequencies + (1.0 - keep) * frequencies / factor
