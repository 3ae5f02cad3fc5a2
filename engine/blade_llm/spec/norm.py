"""Normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A normalisation over the hidden dimension, or over each head where attention has one."""

    eps: float
    kind: Literal["rms", "rms_unit_offset", "layer"] = "rms"
    """``rms``: Zhang & Sennrich, arXiv 1910.07467; ``rms_unit_offset``: with a factor of ``1 + weight`` (Gemma, arXiv
    2403.08295); ``layer``: Ba et al., arXiv 1607.06450."""
    bias: bool = False
