"""Rules of ``spec.scaling`` that span fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from blade_operator.spec.errors import Problem
from blade_operator.spec.fields import LLMServiceSpec
from blade_operator.spec.quantity import parse_duration
from blade_operator.spec.rules.rule import Rule
from blade_operator.spec.scaling_fields import Scaling

SHORTEST_IDLE: Final = 10
"""Least seconds of ``idleToZero``: an engine takes longer to start."""


def _rule(field: str, cel: str, holds: Callable[[Scaling], bool], message: str) -> Rule:
    return Rule(
        at=("spec", "scaling"),
        field=f"spec.scaling.{field}",
        cel=cel,
        holds=lambda name, spec: spec.scaling is None or holds(spec.scaling),
        message=message,
    )


def _decidable(scaling: Scaling) -> bool:
    by_target, by_slo = scaling.target is not None, scaling.slo is not None
    return not scaling.by_load or (scaling.mode != "SLO" and by_target) or (scaling.mode != "Concurrency" and by_slo)


def _idle(scaling: Scaling) -> bool:
    if scaling.idle_to_zero is None:
        return scaling.min > 0
    return scaling.min == 0 and parse_duration(scaling.idle_to_zero) >= SHORTEST_IDLE


SCALING_RULES: Final[tuple[Rule, ...]] = (
    _rule(
        "max",
        "has(self.max) ? self.min <= self.max : self.mode in ['Fixed', 'External']",
        lambda scaling: scaling.min <= scaling.max if scaling.max is not None else not scaling.by_load,
        "must be set for this mode, not below min",
    ),
    _rule(
        "mode",
        "self.mode in ['Fixed', 'External'] || self.mode != 'SLO' && has(self.target) "
        "|| self.mode != 'Concurrency' && has(self.slo)",
        _decidable,
        "SLO needs slo, Concurrency target, Advisory either",
    ),
    _rule(
        "idleToZero",
        "has(self.idleToZero) ? self.min == 0 && duration(self.idleToZero) >= duration('10s') : self.min > 0",
        _idle,
        "goes with min 0, min 0 with it; at least 10s",
    ),
)


def standby_problems(spec: LLMServiceSpec) -> Iterator[Problem]:
    """What ``spec.scaling.standby`` does not go with. No rules: the CRD has no room for their words."""
    scaling, field = spec.scaling, "spec.scaling.standby"
    if scaling is None or not scaling.standby:
        return
    if not scaling.wakes:
        yield Problem(
            field, f"goes with mode Concurrency or SLO, and mode is {scaling.mode}: change it, or remove standby"
        )
    if spec.engine.gpus.nodes > 1:
        yield Problem(field, "is for engines on one machine, and engine.gpus.nodes is more than 1: remove standby")
