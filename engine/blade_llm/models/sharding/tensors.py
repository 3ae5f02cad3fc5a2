"""The tensor map of one rank's part of a decoder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from blade_llm.models.sharding.layers import divided_rows, layer_divisions
from blade_llm.models.sharding.linears import ColumnParallel, Division
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.moe import MoESpec
from blade_llm.spec.shard import Shard
from blade_llm.spec.tensors import LinearMap, TensorMap, TensorPart, Variant
from blade_llm.spec.vocabulary import vocabulary_rows

IN_LAYER: Final = re.compile(r"layers\.(\d+)\.(.+)")
"""A place in a layer: its number, and what is below it."""
_EXPERT: Final = re.compile(r"mlp\.experts\.(\d+)\.")


def shard_tensors(spec: DecoderSpec, tensors: TensorMap, shard: Shard) -> TensorMap:
    """What a rank reads of the checkpoint, in the forms that ``tensors`` has it. ``spec``: of the whole model.

    Of the ranks only the first says which tensors nothing takes, for it alone has all biases; none does where experts
    are divided as wholes.
    """
    own = _Rank(spec, shard)
    variant = tensors.variant
    return replace(
        own.map(tensors),
        variant=None if variant is None else Variant(variant.names, lambda: own.map(variant.make())),
        partial=tensors.partial or shard.rank > 0 or own.lacks_experts,
    )


class _Rank:
    """What one rank has at each place."""

    def __init__(self, spec: DecoderSpec, shard: Shard) -> None:
        self._spec, self._shard = spec, shard
        self._divisions: dict[LayerSpec, Mapping[str, Division]] = {
            layer: layer_divisions(layer, shard) for layer in dict.fromkeys(spec.layers)
        }
        self._vocabulary = vocabulary_rows(spec.vocab_size, shard.rank, shard.size)
        self.lacks_experts = shard.expert_parallel and any(isinstance(layer.mlp, MoESpec) for layer in self._divisions)

    def map(self, tensors: TensorMap) -> TensorMap:
        """``tensors`` with the rank's part of each."""
        return replace(
            tensors,
            linears={
                place: self._linear(place, linear) for place, linear in tensors.linears.items() if self._has(place)
            },
            tensors={place: self._tensor(place, part) for place, part in tensors.tensors.items()},
        )

    def _has(self, place: str) -> bool:
        """Whether the rank has anything of the linear layer at ``place``: not of experts that others have whole."""
        found = IN_LAYER.fullmatch(place) if self.lacks_experts else None
        expert = None if found is None else _EXPERT.match(found[2])
        if found is None or expert is None:
            return True
        mixture = self._spec.layers[int(found[1])].mlp
        assert isinstance(mixture, MoESpec)
        return int(expert[1]) in self._shard.share_of(mixture.routing.num_experts)

    def _linear(self, place: str, linear: LinearMap) -> LinearMap:
        if place == "head":
            return ColumnParallel((self._vocabulary,)).apply(linear)
        found = IN_LAYER.fullmatch(place)
        if found is None:
            return linear
        layer = self._spec.layers[int(found[1])]
        return self._divisions[layer][_EXPERT.sub("mlp.experts.", found[2])].apply(linear)

    def _tensor(self, place: str, part: TensorPart) -> TensorPart:
        if place == "embedding":
            return replace(part, rows=self._vocabulary)
        found = IN_LAYER.fullmatch(place)
        if found is None:
            return part
        rows = divided_rows(self._spec.layers[int(found[1])].attention, found[2], self._shard)
        if rows is None:
            return part
        return replace(part, rows=rows if part.rows is None else part.rows[rows.start : rows.stop])
