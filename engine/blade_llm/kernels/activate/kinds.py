"""The activations, as checkpoints name them, and the formulas they are computed by."""

from __future__ import annotations

from typing import Final, Literal, get_args

Activation = Literal["silu", "gelu", "gelu_tanh", "gelu_new", "quick_gelu", "relu", "relu2"]
"""``gelu`` by the error function (Hendrycks & Gimpel, arXiv 1606.08415), ``gelu_tanh`` and ``gelu_new`` by its
approximation with tanh, which is one formula under two names, ``quick_gelu`` by ``x * sigmoid(1.702 x)``; ``relu2`` is
the square of ``relu`` (So et al., arXiv 2109.08668)."""

Formula = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"]

FORMULAS: Final[dict[Formula, int]] = {
    "silu": 0,
    "gelu": 1,
    "gelu_tanh": 2,
    "quick_gelu": 3,
    "relu": 4,
    "relu2": 5,
}
"""Each with its number in native.cpp."""


def formula_of(kind: Activation) -> Formula:
    """The formula of an activation. Raises :class:`ValueError` for one that is not known."""
    if kind == "gelu_new":
        return "gelu_tanh"
    if kind not in FORMULAS:
        raise ValueError(f"activation {kind!r} is not one of {', '.join(get_args(Activation))}")
    return kind
