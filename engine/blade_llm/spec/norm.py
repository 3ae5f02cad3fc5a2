"""Normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A normalisation over the hidden dimension, or over each head where attention has one."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    """``rms``: Zhang & Sennrich, arXiv 1910.07467; ``layer``: Ba et al., arXiv 1607.06450."""
    bias: bool = False
