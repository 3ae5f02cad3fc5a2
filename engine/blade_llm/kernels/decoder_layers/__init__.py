"""Decoder layers as one operator where all their operators are native: norm, fused QKV, rotation and cache write,
attention, output projection, norm and MLP or experts, with the residual in between.

What defines it is the layers themselves (:mod:`blade_llm.models.decoder_layer`); the results are the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.decoder_layers.draft_inputs import DraftSampling, DraftTables
from blade_llm.kernels.decoder_layers.weights import DecoderShape, LayerWeights, NormKind
from blade_llm.spec.mlp import Activation

__all__ = ["DraftSampling", "DraftTables", "fuse", "serves"]

if TYPE_CHECKING:
    from blade_llm.kernels.decoder_layers.native import NativeDecoder


def serves(layers: Sequence[LayerWeights], head_dim: int) -> bool:
    """Whether ``layers`` can be computed in one call.

    They are on a CPU with native operators; their linear layers are packed for it, their norms contiguous bf16. Keys
    and values have the same width, all dimensions of a head rotate as halves, or not at all with angles of zero, and
    norms of queries and keys are of each head. Experts have no shared one beside them. Layers that compute attention
    and MLP side by side, or that normalise what they add to the residual, are not of this form at all.
    """
    if not layers or backend_of(layers[0].input_norm) != "native":
        return False
    from blade_llm.kernels.decoder_layers import native

    return all(native.serves(layer, head_dim) for layer in layers)


def fuse(
    layers: Sequence[LayerWeights],
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    inner: int,
    eps: float,
    scale: float | None = None,
    norm: NormKind = "rms",
    activation: Activation = "silu",
    gated: bool = True,
    group: int | None = None,
) -> NativeDecoder | None:
    """All ``layers`` for one call, or None where their operators are to be called one by one (:func:`serves`).

    ``inner``: width of the MLPs, 0 without; ``eps``: of all norms; ``scale``: of attention, ``head_dim ** -0.5`` by
    default; ``norm``: of all norms, those of queries and keys included, which are RMS norms whatever the others are.
    ``group``: address of the C++ group (:mod:`blade_llm.kernels.collectives`) of the ranks that each compute a part of
    all layers; heads and ``inner`` are this rank's, and only one rank's ``output`` and ``down`` have biases.
    """
    if not serves(layers, head_dim):
        return None
    from blade_llm.kernels.decoder_layers import native

    factor = head_dim**-0.5 if scale is None else scale
    shape = DecoderShape(num_heads, num_kv_heads, head_dim, factor, inner, eps, norm, activation, gated)
    return native.NativeDecoder(layers, shape, group)
