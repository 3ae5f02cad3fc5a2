"""What families with mixtures of experts have in common."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.moe import MoESpec


def with_experts(spec: DecoderSpec, experts: MoESpec, layers: Collection[int] | None = None) -> DecoderSpec:
    """``spec`` with ``experts`` in place of the MLP of some layers; None for all.

    Raises :class:`UnsupportedModelError` for an activation that experts do not have.
    """
    chosen = range(len(spec.layers)) if layers is None else layers
    for index in chosen:
        mlp = spec.layers[index].mlp
        if isinstance(mlp, MLPSpec) and (mlp.activation != "silu" or not mlp.gated):
            raise UnsupportedModelError(f"experts with activation {mlp.activation!r} are not supported; 'silu' is")
    kinds = {layer: replace(layer, mlp=experts) for layer in set(spec.layers)}
    layered = (kinds[layer] if index in chosen else layer for index, layer in enumerate(spec.layers))
    return replace(spec, layers=tuple(layered))
