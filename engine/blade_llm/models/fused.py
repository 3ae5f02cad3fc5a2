"""Decoder layers as one native call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blade_llm.kernels.decoder_layers import fuse
from blade_llm.models.decoder_layer import DecoderLayer
from blade_llm.parallel.group import RankGroup
from blade_llm.spec.moe import MoESpec

if TYPE_CHECKING:
    from blade_llm.kernels.decoder_layers.native import NativeDecoder


def fuse_layers(layers: Sequence[DecoderLayer], group: RankGroup | None = None) -> NativeDecoder | None:
    """The operator for all of them, where it computes what each asks for; they share one rotation.

    ``group``: the ranks that have a part of each layer; None for one whose collectives C++ cannot call.
    """
    address = None if group is None else group.native
    if group is not None and address is None:
        return None
    weights = [layer.fusable for layer in layers]
    specs = [layer.spec for layer in layers]
    first = specs[0]
    mlps = [spec.mlp for spec in specs if not isinstance(spec.mlp, MoESpec)]
    eps = {norm.eps for spec in specs for norm in spec.norms}
    scales = {spec.attention.scale for spec in specs}
    kinds = {norm.kind for spec in specs for norm in (spec.attention_norm, spec.mlp_norm) if norm}
    if any(each is None for each in weights) or any(len(each) > 1 for each in (eps, scales, set(mlps), kinds)):
        return None
    (kind,) = kinds
    of_heads = "rms_unit_offset" if kind == "rms_unit_offset" else "rms"  # as the operator computes them
    if {each.attention.head_norm.kind for each in specs if each.attention.head_norm} - {of_heads}:
        return None
    mlp = mlps[0] if mlps else None
    return fuse(
        [each for each in weights if each is not None],
        num_heads=first.attention.num_heads,
        num_kv_heads=first.attention.num_kv_heads,
        head_dim=first.attention.head_dim,
        scale=first.attention.scale,
        inner=mlp.inner if mlp else 0,
        eps=eps.pop(),
        norm=kind,
        activation=mlp.activation if mlp else "silu",
        gated=mlp.gated if mlp else True,
        group=address,
    )
