"""``spec.scaling``: how many engines a service is to have now, and what its status says of that.

A decision is written to ``status.scaling`` first, and acted upon once it is there: an operator that is killed anywhere
goes on from what was written. The decision loop has made it, as a rule, and is remembered; a reconcile that was given
the routers' signals makes it itself where none is recent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from blade_operator.model.observed import Observed
from blade_operator.model.plan import EventRecord
from blade_operator.model.scale_target import ScaleTarget
from blade_operator.reconcile.scaling.external import external
from blade_operator.reconcile.scaling.limits import engine_pods, limits_of, ready_routers
from blade_operator.reconcile.scaling.look import GAP, JUMP, decided, is_due
from blade_operator.reconcile.scaling.publish import events, is_to_publish, published
from blade_operator.scaling import serialise
from blade_operator.scaling.autoscaler import Autoscaler, Judgement, Verdict, without_times
from blade_operator.scaling.serialise import Saved
from blade_operator.spec.parse import LLMService
from blade_operator.spec.scaling_fields import Scaling

_AT_ONCE: Final = 0.1
_BY_LOAD: Final = ("Concurrency", "SLO")


@dataclass(frozen=True, slots=True)
class Scaled:
    """What follows from ``spec.scaling`` now."""

    replicas: int
    """Engines that are to be there."""
    status: Mapping[str, Any] | None = None
    """``status.scaling``; None: there is none."""
    judgement: Judgement | None = None
    """The condition ``Scaling``; None: there is none."""
    events: list[EventRecord] = field(default_factory=list)
    autoscaler: Autoscaler | None = None
    """To be remembered."""
    target: ScaleTarget | None = None
    """What the decision loop is to look at; None: the service is not scaled by load."""
    requeue: list[float] = field(default_factory=list)


def scale(service: LLMService, observed: Observed, now: datetime) -> Scaled:
    """How many engines the service is to have."""
    scaling, replicas = service.spec.scaling, service.spec.replicas
    if scaling is None or scaling.mode == "Fixed":
        return Scaled(replicas)
    before = (observed.service.get("status") or {}).get("scaling") or {}
    if scaling.mode == "External":
        status, judgement = external(before, replicas, now)
        return Scaled(replicas, status, judgement)
    target = _target(service, scaling, observed, before)
    limits = limits_of(scaling, target.gpus, now)
    engines = target.wanted(limits)
    known = _known(service, scaling, observed, before, engines, now)
    new = known
    if observed.signals_queried and (is_due(known, now.timestamp()) or (not engines and _is_waited_for(observed))):
        new = decided(known, target, observed.signals, limits, engines, now)
    if scaling.mode != "Advisory":
        bounded = dataclasses.replace(new.verdict, engines=limits.bound(new.verdict.engines))
        new = dataclasses.replace(new, verdict=bounded)
    was = int(known.status.get("replicas", engines))
    if is_to_publish(new, service.generation, engines, now.timestamp()):
        new = published(new, scaling.mode, service.generation, replicas, was, now)
    changed = scaling.mode != "Advisory" and new.status["replicas"] != engines
    return Scaled(
        engines,
        new.status,
        new.judgement,
        events(was, new, scaling.mode),
        new,
        dataclasses.replace(target, declared=engines),
        [_AT_ONCE] * changed,
    )


def _is_waited_for(observed: Observed) -> bool:
    """Whether requests wait for an engine."""
    return any(service.waiting for each in observed.signals.values() for service in each.services)


def with_replicas(service: LLMService, replicas: int) -> LLMService:
    """``service`` as if its spec said ``replicas``, by which everything else goes."""
    if replicas == service.spec.replicas:
        return service
    return dataclasses.replace(service, spec=service.spec.model_copy(update={"replicas": replicas}))


def _target(service: LLMService, scaling: Scaling, observed: Observed, before: Mapping[str, Any]) -> ScaleTarget:
    """``before``: the status of scaling as it was written last."""
    spec, stored = service.spec, before.get("replicas")
    acts = before.get("mode") in _BY_LOAD and isinstance(stored, int) and stored >= 0
    return ScaleTarget(
        uid=service.uid,
        generation=service.generation,
        scaling=scaling,
        replicas=spec.replicas,
        gpus=spec.engine.gpus.count * spec.engine.gpus.nodes,
        stored=stored if acts else None,
        declared=spec.replicas,
        engines=engine_pods(observed.pods, scaling.standby),
        routers=frozenset(ready_routers(observed.pods)),
    )


def _known(
    service: LLMService, scaling: Scaling, observed: Observed, before: Mapping[str, Any], engines: int, now: datetime
) -> Autoscaler:
    """What is remembered of the service; what its status says where that was another process."""
    known, at = observed.autoscaler, now.timestamp()
    if known is not None and known.uid == service.uid and known.status.get("mode") == scaling.mode:
        return known
    same = before.get("mode") == scaling.mode
    state = serialise.load(str(before.get("state", ""))) if same else None
    saved = state or Saved(replicas=service.spec.replicas)
    written = next(
        (
            each
            for each in (observed.service.get("status") or {}).get("conditions", ())
            if each["type"] == "Scaling" and same
        ),
        None,
    )
    judgement = (
        Judgement(written["status"], written["reason"], written.get("message", ""))
        if written
        else Judgement("Unknown", "NoMetrics", "nothing is decided yet")
    )
    verdict = Verdict(
        engines, int(before.get("needed", engines)) if same else engines, str(before.get("reason", "")), judgement
    )
    memory = saved.memory if 0 <= at - saved.at < GAP else without_times(saved.memory, at)
    started = Autoscaler(
        service.uid, service.generation, verdict, before if same else {}, judgement, saved=state, memory=memory
    )
    # A clock that went back since then is noticed by the first decision.
    return dataclasses.replace(started, decided_at=saved.at if saved.at > at + JUMP else 0.0)
