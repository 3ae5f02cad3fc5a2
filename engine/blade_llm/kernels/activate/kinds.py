"""The activations by their numbers in C++."""

from __future__ import annotations

from typing import Final

from blade_llm.spec.mlp import Activation

FORMULAS: Final[dict[Activation, int]] = {
    "silu": 0,
    "gelu": 1,
    "gelu_tanh": 2,
    "quick_gelu": 3,
    "relu": 4,
    "relu2": 5,
}
"""Each with its number in native.cpp."""
