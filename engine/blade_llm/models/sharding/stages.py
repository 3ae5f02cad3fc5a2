"""Pipeline parallelism (GPipe: Huang et al., arXiv 1811.06965) as specs and tensor maps: each stage has some of a
model's layers, which follow each other, the first the embedding too, the last what comes after the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from blade_llm.models.config import ModelConfig
from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.sharding.problems import undivided
from blade_llm.models.sharding.tensors import IN_LAYER
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.shard import Stage
from blade_llm.spec.tensors import LinearMap, TensorMap, TensorPart, Variant

_FLAG: Final = "--pipeline_parallel_size"
_AT_BEGIN: Final = ("embedding", "positions", "embedding_norm.")
_Part = TypeVar("_Part", LinearMap, TensorPart)


def pipeline_parallel_problem(config: ModelConfig, stages: int) -> str | None:
    """Why ``stages`` stages cannot compute the model one after the other, and what to give instead; None where they
    can."""
    if stages == 1:
        return None
    what = undivided(config.decoder) or ("a head that drafts for another model" if config.is_head else None)
    if what is not None:
        return f"{_FLAG} {stages}: {what} cannot be divided into stages; give {_FLAG} 1"
    if stages > config.num_layers:
        return f"{_FLAG} {stages} is more than the model's {config.num_layers} layers; give at most that"
    return None


def stages_of(config: ModelConfig, count: int) -> list[Stage]:
    """The stages of a whole model: of all ways to divide its layers the one whose slowest stage is fastest.

    A stage is as slow as the weights are many that a decode reads in it: those of its layers, of the last one the
    output matrix too.

    Raises :class:`UnsupportedModelError` where :func:`pipeline_parallel_problem` finds something.
    """
    if problem := pipeline_parallel_problem(config, count):
        raise UnsupportedModelError(problem)
    costs = _costs(config)
    ends = [*_divide(costs, count), len(costs)]
    starts = [0, *ends[:-1]]
    return [
        Stage(index, count, range(start, end), len(costs))
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def stage_model(config: ModelConfig, stage: Stage) -> ModelConfig:
    """What ``stage`` (of :func:`stages_of` the whole model) has of ``config``, which is the whole model or a tensor
    rank's part of it: its layers, counted from 0 on, their part of the checkpoint and of the KV cache."""
    assert config.stage is None, "this is a stage of a model already"
    if stage.count == 1:
        return config
    whole, kept = config.decoder, stage.layers
    assert isinstance(whole, DecoderSpec)
    decoder = replace(
        whole,
        layers=whole.layers[kept.start : kept.stop],
        positions=whole.positions if stage.first else None,
        embedding_norm=whole.embedding_norm if stage.first else None,
        begins=stage.first,
        ends=stage.last,
    )
    return replace(
        config,
        decoder=decoder,
        tensors=_StageTensors(whole, stage).of(config.tensors),
        kv=replace(config.kv, num_layers=len(kept)),
        stage=stage,
    )


class _StageTensors:
    """Which places of a tensor map a stage has, and where it has them."""

    def __init__(self, spec: DecoderSpec, stage: Stage) -> None:
        self._stage = stage
        self._head_is_embedding = spec.head and spec.tied

    def of(self, tensors: TensorMap) -> TensorMap:
        """The stage's part of ``tensors``."""
        variant = tensors.variant
        return replace(
            tensors,
            linears=self._some(tensors.linears),
            tensors=self._some(tensors.tensors),
            variant=None if variant is None else Variant(variant.names, lambda: self.of(variant.make())),
            partial=True,
        )

    def _some(self, parts: Mapping[str, _Part]) -> dict[str, _Part]:
        return {own: part for place, part in parts.items() if (own := self._place(place)) is not None}

    def _place(self, place: str) -> str | None:
        """Where the stage has what the model has at ``place``; None: it has not."""
        found = IN_LAYER.fullmatch(place)
        if found is not None:
            layer, layers = int(found[1]), self._stage.layers
            return f"layers.{layer - layers.start}.{found[2]}" if layer in layers else None
        if not place.startswith(_AT_BEGIN):
            return place if self._stage.last else None
        also_last = place == "embedding" and self._head_is_embedding and self._stage.last
        return place if self._stage.first or also_last else None


def _costs(config: ModelConfig) -> list[int]:
    """Weights of each layer; those of the output matrix count with the last one's."""
    decoder = config.decoder
    costs = [0] * config.num_layers
    for place, linear in config.tensors.linears.items():
        if found := IN_LAYER.fullmatch(place):
            costs[int(found[1])] += linear.size
    if decoder.head:
        costs[-1] += decoder.vocab_size * decoder.hidden_size
    return costs


def _divide(costs: Sequence[int], count: int) -> list[int]:
    """Where the parts after the first begin, so that the largest sum of a part is as small as it can be. Every part has
    something; of equally good ways the one with most in the first parts, which sample nothing."""
    size = len(costs)
    sums = [0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    # Of so many parts that end at each place: the largest sum, and where the last of them begins.
    best: list[list[tuple[int, int]]] = [[(sums[end], 0) for end in range(size + 1)]]
    for parts in range(2, count + 1):
        before, found = best[-1], [(sums[-1], 0)] * (size + 1)
        for end in range(parts, size + 1):
            largest, start = min(
                (max(before[start][0], sums[end] - sums[start]), -start) for start in range(parts - 1, end)
            )
            found[end] = largest, -start
        best.append(found)
    starts = [size]
    for found in reversed(best[1:]):
        starts.append(found[starts[-1]][1])
    return starts[:0:-1]
