"""What a model is for the longest sequences that are asked for, whatever memory leaves of their length.

So the rotation does not depend on the machine: replicas with more memory and with less give the same logits, and keys
that one has computed fit the other's.
"""

from __future__ import annotations

from dataclasses import replace

from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.rope import LongRopeScaling


def for_length(spec: DecoderSpec, length: int) -> DecoderSpec:
    """``spec`` for sequences of at most ``length`` tokens.

    Longrope has one list of factors left (vLLM decides so, too; transformers does for each sequence by itself, whose
    cached keys cannot change). A window that holds whole sequences is none.
    """
    return replace(
        spec, layers=tuple(replace(layer, attention=_attention(layer.attention, length)) for layer in spec.layers)
    )


def _attention(spec: AttentionSpec | LatentAttentionSpec, length: int) -> AttentionSpec | LatentAttentionSpec:
    if isinstance(spec, LatentAttentionSpec):  # has no window, and no family rotates it by longrope
        return spec
    if spec.window >= length:
        spec = replace(spec, window=0)
    if spec.rope is None or not isinstance(scaling := spec.rope.scaling, LongRopeScaling):
        return spec
    factors = scaling.long if length > scaling.original_positions else scaling.short
    return replace(spec, rope=replace(spec.rope, scaling=replace(scaling, short=factors, long=factors)))
