"""Rules of ``spec.engine.gpus``: how many ranks there may be for the devices that an engine gets."""

from __future__ import annotations

from typing import Final

from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.pod_fields import Gpus
from blade_operator.spec.quantity import parse_quantity
from blade_operator.spec.rules.rule import Rule

_AT: Final = ("spec", "engine", "gpus")
_FIELD: Final = ".".join(_AT)
_LEAST_SHM: Final = "1Gi"
"""Shared memory of an engine with several ranks, as NCCL's documentation calls for."""
_TENSOR_RANKS: Final = (
    "(has(self.gpus.tensorParallel) ? self.gpus.tensorParallel : self.gpus.count / self.gpus.pipelineParallel)"
)
"""Of each layer: stages alone exchange little."""
_HEADS: Final = ("eagle3", "mtp")
"""Methods of speculative decoding that read the model's hidden states."""


def _has_a_rank_for_each_device(gpus: Gpus) -> bool:
    """Whether the ranks, as many as the product of both degrees, are as many as there are devices, where there are."""
    return gpus.count == 0 or gpus.ranks == gpus.count


def _are_divisible_among_machines(gpus: Gpus) -> bool:
    """Whether every machine gets as many ranks as the others, and each at least one."""
    return (gpus.count or gpus.ranks) % gpus.nodes == 0


def _has_shared_memory(spec: LLMServiceSpec) -> bool:
    """Whether `/dev/shm` is large enough for the ranks."""
    return spec.engine.gpus.tensor_ranks == 1 or parse_quantity(spec.engine.shm_size) >= parse_quantity(_LEAST_SHM)


def _has_ranks_for_experts(gpus: Gpus) -> bool:
    """Whether there are ranks to divide experts among, where they are to be divided."""
    return not gpus.expert_parallel or gpus.tensor_ranks > 1


def _has_plain_stages(spec: LLMServiceSpec) -> bool:
    """Whether the engine has no feature that does not go together with pipeline stages."""
    speculative = spec.engine.speculative
    return spec.engine.gpus.pipeline_parallel == 1 or speculative is None or speculative.method not in _HEADS


GPU_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        at=_AT,
        field=f"{_FIELD}.tensorParallel",
        cel="self.count == 0 || (has(self.tensorParallel) ? self.tensorParallel * self.pipelineParallel == self.count "
        ": self.count % self.pipelineParallel == 0)",
        holds=lambda name, spec: _has_a_rank_for_each_device(spec.engine.gpus),
        message="tensorParallel x pipelineParallel must be count, one rank a device: change one of them",
    ),
    Rule(
        at=_AT,
        field=f"{_FIELD}.nodes",
        cel="(self.count > 0 ? self.count : self.pipelineParallel * "
        "(has(self.tensorParallel) ? self.tensorParallel : 1)) % self.nodes == 0",
        holds=lambda name, spec: _are_divisible_among_machines(spec.engine.gpus),
        message="must divide tensorParallel x pipelineParallel, the ranks",
    ),
    Rule(
        at=_AT,
        field=f"{_FIELD}.topologyKey",
        cel="!has(self.topologyKey) || self.nodes > 1",
        holds=lambda name, spec: spec.engine.gpus.topology_key is None or spec.engine.gpus.nodes > 1,
        message="is what several nodes share: remove it, or set nodes",
    ),
    Rule(
        at=_AT,
        field=f"{_FIELD}.customAllReduce",
        cel="!self.customAllReduce || self.count > 0",
        holds=lambda name, spec: not spec.engine.gpus.custom_all_reduce or spec.engine.gpus.count > 0,
        message="is for devices: remove it, or set count",
    ),
    Rule(
        at=("spec", "engine"),
        field="spec.engine.shmSize",
        cel=f"!has(self.gpus) || {_TENSOR_RANKS} <= 1 || "
        f"quantity(string(self.shmSize)).compareTo(quantity('{_LEAST_SHM}')) >= 0",
        holds=lambda name, spec: _has_shared_memory(spec),
        message=f"must be at least {_LEAST_SHM} with several ranks, which share what they compute there",
    ),
    Rule(
        at=_AT,
        field=f"{_FIELD}.expertParallel",
        cel=f"!self.expertParallel || {_TENSOR_RANKS.replace('self.gpus', 'self')} > 1",
        holds=lambda name, spec: _has_ranks_for_experts(spec.engine.gpus),
        message="needs several ranks: set tensorParallel to 2 or more",
    ),
    Rule(
        at=("spec", "engine"),
        field=f"{_FIELD}.pipelineParallel",
        cel="!has(self.gpus) || self.gpus.pipelineParallel == 1 || !has(self.speculative) || "
        f"!(self.speculative.method in {list(_HEADS)})",
        holds=lambda name, spec: _has_plain_stages(spec),
        message="stages do not go with the speculative methods eagle3 and mtp, whose heads read states of the last "
        "one: take draft, ngram or lookahead, or set 1",
    ),
)
