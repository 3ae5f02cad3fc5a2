"""The spec of one rank's part of a decoder."""

from __future__ import annotations

from dataclasses import replace

from blade_llm.models.sharding.heads import kv_heads, query_heads
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.moe import MoESpec
from blade_llm.spec.shard import Shard


def shard_decoder(spec: DecoderSpec, shard: Shard) -> DecoderSpec:
    """``spec`` with the rank's own heads and inner dimensions; the vocabulary and the hidden size stay the model's.

    Raises ``ValueError`` for what cannot be divided.
    """
    kinds = {layer: _layer(layer, shard) for layer in dict.fromkeys(spec.layers)}
    return replace(spec, layers=tuple(kinds[layer] for layer in spec.layers))


def _layer(layer: LayerSpec, shard: Shard) -> LayerSpec:
    return replace(layer, attention=_attention(layer.attention, shard), mlp=_mlp(layer.mlp, shard))


def _attention(spec: AttentionSpec | LatentAttentionSpec, shard: Shard) -> AttentionSpec | LatentAttentionSpec:
    own = query_heads(spec, shard)
    if isinstance(spec, LatentAttentionSpec):
        return replace(spec, num_heads=len(own))
    slopes = spec.alibi_slopes[own.start : own.stop]
    return replace(spec, num_heads=len(own), num_kv_heads=len(kv_heads(spec, shard)), alibi_slopes=slopes)


def _mlp(spec: MLPSpec | MoESpec, shard: Shard) -> MLPSpec | MoESpec:
    if isinstance(spec, MLPSpec):
        return replace(spec, inner=len(shard.part_of(spec.inner)))
    own = replace(spec, shared_inner=len(shard.part_of(spec.shared_inner)))
    if shard.expert_parallel:
        return replace(own, part=shard.share_of(spec.routing.num_experts))
    return replace(own, inner=len(shard.part_of(spec.inner)))
