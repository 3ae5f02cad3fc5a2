"""Decoder layers as one operator where all their operators are native: norm, fused QKV, rotation and cache write,
attention, output projection, norm and gated MLP, with the residual in between. Heads of queries and keys may be
normalised, and a layer may have a window.

What defines it is the layers themselves (:mod:`blade_llm.models.decoder_layer`); the results are the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.decoder_layers.weights import LayerWeights

if TYPE_CHECKING:
    from blade_llm.kernels.decoder_layers.native import NativeDecoder


def fuse(
    layers: Sequence[LayerWeights],
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    scale: float,
    inner: int,
    eps: float,
) -> NativeDecoder | None:
    """All ``layers`` for one call, or None where their operators are to be called one by one.

    ``scale``: of attention; ``inner``: width of the gated MLP; ``eps``: of all norms.
    """
    if not layers or backend_of(layers[0].input_norm) != "native":
        return None
    from blade_llm.kernels.decoder_layers import native

    return native.fuse(layers, num_heads, num_kv_heads, head_dim, scale, inner, eps)
