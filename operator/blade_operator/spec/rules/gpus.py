"""Rules of ``spec.engine.gpus``: how many ranks there may be for the devices that an engine gets."""

from __future__ import annotations

from typing import Final

from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.pod_fields import Gpus
from blade_operator.spec.quantity import parse_quantity
from blade_operator.spec.rules.rule import Rule

_FIELD: Final = "spec.engine.gpus"
_LEAST_SHM: Final = "1Gi"
"""Shared memory of an engine with several ranks, as NCCL's documentation calls for."""
_ONE_RANK: Final = (
    "(!has(self.gpus) || (has(self.gpus.tensorParallel) ? self.gpus.tensorParallel : self.gpus.count) <= 1)"
)


def _has_a_rank_for_each_device(gpus: Gpus) -> bool:
    """Whether the ranks, as many as the product of all degrees, are as many as there are devices, where there are."""
    ranks = gpus.ranks * gpus.pipeline_parallel
    return gpus.tensor_parallel is None or gpus.count == 0 or ranks == gpus.count


def _has_shared_memory(spec: LLMServiceSpec) -> bool:
    """Whether `/dev/shm` is large enough for the ranks."""
    return spec.engine.gpus.ranks == 1 or parse_quantity(spec.engine.shm_size) >= parse_quantity(_LEAST_SHM)


GPU_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        at=("spec", "engine"),
        field=f"{_FIELD}.tensorParallel",
        cel="!has(self.gpus) || !has(self.gpus.tensorParallel) || self.gpus.count == 0 || "
        "self.gpus.tensorParallel * self.gpus.pipelineParallel == self.gpus.count",
        holds=lambda name, spec: _has_a_rank_for_each_device(spec.engine.gpus),
        message="tensorParallel x pipelineParallel must be count, one rank a device: leave tensorParallel out to use "
        "every device, or change count",
    ),
    Rule(
        at=("spec", "engine"),
        field=f"{_FIELD}.pipelineParallel",
        cel="!has(self.gpus) || self.gpus.pipelineParallel == 1",
        holds=lambda name, spec: spec.engine.gpus.pipeline_parallel == 1,
        message="must be 1: pipeline parallelism is not supported yet; split layers with tensorParallel",
    ),
    Rule(
        at=("spec", "engine"),
        field=f"{_FIELD}.nodes",
        cel="!has(self.gpus) || self.gpus.nodes == 1",
        holds=lambda name, spec: spec.engine.gpus.nodes == 1,
        message="must be 1: an engine on several machines is not supported yet",
    ),
    Rule(
        at=("spec", "engine"),
        field="spec.engine.shmSize",
        cel=f"{_ONE_RANK} || quantity(string(self.shmSize)).compareTo(quantity('{_LEAST_SHM}')) >= 0",
        holds=lambda name, spec: _has_shared_memory(spec),
        message=f"must be at least {_LEAST_SHM} with several ranks (gpus.tensorParallel), which exchange what they "
        "compute through it",
    ),
)
