"""Splits a fused projection into queries, keys and values, and rotates the first two, for attention without a cache."""

from __future__ import annotations

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.rope_split import torch as _reference


def rope_split(
    qkv: Tensor, angles: tuple[Tensor, Tensor] | None, queries: Tensor, keys: Tensor, values: Tensor
) -> None:
    """Write ``queries`` ([rows, heads, head_dim]), ``keys`` and ``values`` ([heads, rows, head_dim]), rotated in fp32
    and rounded once.

    ``qkv``: [rows, 3 * heads * head_dim], contiguous, queries first. May be overwritten. ``angles``: cosines and sines,
    [rows, head_dim / 2] fp32 each; dimension ``i`` rotates with ``i + head_dim / 2``. None: nothing rotates.
    """
    if backend_of(qkv) == "native":
        from blade_llm.kernels.rope_split import native

        native.rope_split(qkv, angles, queries, keys, values)
    else:
        _reference.rope_split(qkv, angles, queries, keys, values)
