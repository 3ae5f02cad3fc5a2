"""``spec.scaling``: how many engines a service is to have now, and what its status says of that.

A decision is written to ``status.scaling`` first, and acted upon once it is there: an operator that is killed anywhere
goes on from what was written. Numbers that change all the time are written at most once a minute, and only when they
have changed enough; a changed number of engines at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from blade_operator.model.observed import Observed
from blade_operator.model.plan import EventRecord
from blade_operator.reconcile.scaling.external import external
from blade_operator.reconcile.scaling.limits import (
    Limits,
    count_engines,
    limits_of,
    ready_routers,
    start_seconds,
)
from blade_operator.scaling import serialise
from blade_operator.scaling.autoscaler import (
    KEEP_SECONDS,
    PUBLISH_SECONDS,
    Autoscaler,
    Judgement,
    Verdict,
    differs,
    is_significant,
    without_times,
)
from blade_operator.scaling.decide import decide
from blade_operator.scaling.load import Load
from blade_operator.scaling.policy import Policy
from blade_operator.scaling.serialise import Saved
from blade_operator.scaling.signals import Measured, measure
from blade_operator.spec.parse import LLMService
from blade_operator.spec.scaling_fields import Scaling

PERIOD: Final = 10.0
"""Seconds between two decisions."""
GAP: Final = 180.0
"""Seconds without a decision after which what was needed lately is not known."""
UNMEASURED: Final = 120.0
"""Seconds of requests without a stream to measure after which the status says so."""
_AT_ONCE: Final = 0.1
_CHANGES: Final = 5
_REASON: Final = 300
"""Characters."""
_BY_LOAD: Final = ("Concurrency", "SLO")
_JUMP: Final = 2.0
"""Seconds by which a clock may go back."""


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
    limits = limits_of(service.spec, scaling, now)
    stored = _stored(before, scaling)
    engines = replicas if scaling.mode == "Advisory" else limits.bound(replicas if stored is None else stored)
    known = _known(service, scaling, observed, before, engines, now)
    at = now.timestamp()
    new = known
    if not 0 <= at - known.decided_at < 0.8 * PERIOD or (not engines and _is_waited_for(observed)):
        new = _decided(known, service, observed, limits, engines, now)
    verdict = new.verdict
    if scaling.mode != "Advisory":
        verdict = dataclasses.replace(verdict, engines=limits.bound(verdict.engines))
    was = int(known.status.get("replicas", engines))
    new = _published(dataclasses.replace(new, verdict=verdict), known, service, was, now)
    changed = scaling.mode != "Advisory" and new.status["replicas"] != engines
    return Scaled(
        engines,
        new.status,
        new.judgement,
        _events(was, new, scaling.mode),
        new,
        [_AT_ONCE if changed else PERIOD],
    )


def _is_waited_for(observed: Observed) -> bool:
    """Whether requests wait for an engine."""
    return any(service.waiting for each in observed.signals.values() for service in each.services)


def with_replicas(service: LLMService, replicas: int) -> LLMService:
    """``service`` as if its spec said ``replicas``, by which everything else goes."""
    if replicas == service.spec.replicas:
        return service
    return dataclasses.replace(service, spec=service.spec.model_copy(update={"replicas": replicas}))


def _stored(before: Mapping[str, Any], scaling: Scaling) -> int | None:
    """Engines that were decided on before; None: nothing was in a mode that acts."""
    replicas = before.get("replicas")
    return replicas if before.get("mode") in _BY_LOAD and isinstance(replicas, int) and replicas >= 0 else None


def _known(
    service: LLMService, scaling: Scaling, observed: Observed, before: Mapping[str, Any], engines: int, now: datetime
) -> Autoscaler:
    """What is remembered of the service; what its status says where that was another process."""
    known, at = observed.autoscaler, now.timestamp()
    if known is not None and known.uid == service.uid and known.status.get("mode") == scaling.mode:
        return known
    saved = serialise.load(str(before.get("state", ""))) if before.get("mode") == scaling.mode else None
    saved = saved or Saved(replicas=service.spec.replicas)
    written = next(
        (
            each
            for each in (observed.service.get("status") or {}).get("conditions", ())
            if each["type"] == "Scaling" and before.get("mode") == scaling.mode
        ),
        None,
    )
    judgement = (
        Judgement(written["status"], written["reason"], written.get("message", ""))
        if written
        else Judgement("Unknown", "NoMetrics", "nothing is decided yet")
    )
    same = before.get("mode") == scaling.mode
    verdict = Verdict(
        engines, int(before.get("needed", engines)) if same else engines, str(before.get("reason", "")), judgement
    )
    memory = saved.memory if 0 <= at - saved.at < GAP else without_times(saved.memory, at)
    started = Autoscaler(service.uid, service.generation, verdict, before if same else {}, judgement, memory)
    # A clock that went back since then is noticed by the first decision.
    return dataclasses.replace(started, decided_at=saved.at if saved.at > at + _JUMP else 0.0)


def _decided(
    known: Autoscaler, service: LLMService, observed: Observed, limits: Limits, engines: int, now: datetime
) -> Autoscaler:
    """After a look at the metrics."""
    scaling, at, memory = service.spec.scaling, now.timestamp(), known.memory
    assert scaling is not None
    jumped = known.decided_at - at
    if jumped > _JUMP or (known.measured_at and at - known.measured_at > GAP):
        memory = without_times(memory, at)
    if (measured_start := start_seconds(observed.pods)) is not None:
        memory = dataclasses.replace(memory, start_seconds=measured_start)
    counted = count_engines(observed.pods, engines, memory.start_seconds, now, scaling.standby)
    percentile = scaling.slo.percentile if scaling.slo else 90
    found = measure(observed.signals, ready_routers(observed.pods), known.samples, counted, at, percentile)
    new = dataclasses.replace(known, memory=memory, samples=found.samples, decided_at=at)
    verdict = dataclasses.replace(known.verdict, engines=engines)
    if jumped > _JUMP:
        message = f"the clock went back by {jumped:.0f} s; what was needed lately is forgotten"
        return _unknown(new, verdict, "ClockJumped", message)
    if found.load is None:
        return _unknown(new, verdict, found.problem, f"{found.message}: {engines} engines stay")
    if limits.policy.concurrency is None and not found.has_rates:
        return dataclasses.replace(new, verdict=verdict)
    policy = limits.policy
    if not found.complete:  # there is more load than this
        least = min(max(policy.least, engines), policy.most)
        policy = dataclasses.replace(policy, least=least, idle_to_zero=None)
    decision, memory = decide(policy, engines, found.load, memory)
    new = _measured(dataclasses.replace(new, memory=memory, measured_at=at), found, limits.policy, at)
    judgement = _judgement(new, service, scaling, limits, decision.needed, decision.engines, found)
    reason = decision.reason[:_REASON]
    return dataclasses.replace(new, verdict=Verdict(decision.engines, decision.needed, reason, judgement))


def _unknown(new: Autoscaler, verdict: Verdict, reason: str, message: str) -> Autoscaler:
    return dataclasses.replace(
        new, verdict=dataclasses.replace(verdict, judgement=Judgement("Unknown", reason, message))
    )


def _measured(new: Autoscaler, found: Measured, policy: Policy, at: float) -> Autoscaler:
    """With since when no stream was measured."""
    load = found.load
    missing = (
        load is not None
        and load.arrivals > 0
        and (
            (policy.targets.ttft is not None and load.ttft is None)
            or (policy.targets.tpot is not None and load.tpot is None)
        )
    )
    return dataclasses.replace(new, unmeasured_since=(new.unmeasured_since or at) if missing else 0.0)


def _judgement(
    new: Autoscaler,
    service: LLMService,
    scaling: Scaling,
    limits: Limits,
    needed: int,
    engines: int,
    found: Measured,
) -> Judgement:
    """The condition after a decision; what stands in the way first."""
    policy = limits.policy
    if limits.problem is not None:
        return Judgement("False", *limits.problem)
    if found.load is not None and needed >= policy.most <= engines and _is_beyond(found.load, policy):
        if limits.in_budget is not None and policy.most == limits.in_budget:
            message = f"spec.scaling.maxGPUs allows {policy.most} engines, and more are needed"
            return Judgement("False", "BudgetLimited", message)
        return Judgement("False", "AtMaximum", f"{policy.most} engines are the most allowed, and more are needed")
    if new.unmeasured_since and new.decided_at - new.unmeasured_since >= UNMEASURED:
        what = "streams that report their usage" if found.load and found.load.ttft is not None else "streams"
        return Judgement("Unknown", "SLOUnmeasured", f"requests come, but no {what}, whose latencies could be measured")
    if not found.complete:
        return Judgement("Unknown", "SomeMetrics", "not every router responds: nothing is scaled down")
    saved = serialise.load(str(new.status.get("state", "")))
    if scaling.mode != "Advisory" and saved is not None and service.spec.replicas != saved.replicas >= 0:
        message = (
            f"somebody set spec.replicas to {service.spec.replicas}, which mode {scaling.mode} does not read: remove "
            "the HorizontalPodAutoscaler, or use mode External"
        )
        return Judgement("True", "ReplicasIgnored", message)
    return Judgement("True", "Deciding", f"between {policy.least} and {policy.most} engines")


def _is_beyond(load: Load, policy: Policy) -> bool:
    """Whether all engines that are allowed do not do."""
    if policy.concurrency is not None:
        return load.present > policy.concurrency * policy.most
    pairs = ((load.ttft, policy.targets.ttft), (load.tpot, policy.targets.tpot))
    return any(measured is not None and target is not None and measured > target for measured, target in pairs)


def _published(new: Autoscaler, known: Autoscaler, service: LLMService, was: int, now: datetime) -> Autoscaler:
    """With what the status is to say, which stays as it is while nothing significant has changed. ``was``: the engines
    in it."""
    at, verdict, before = now.timestamp(), new.verdict, known.status
    changed = was != verdict.engines
    at_once = changed or not before or known.generation != service.generation
    due = not 0 <= at - known.published_at < PUBLISH_SECONDS
    saved = serialise.load(str(before.get("state", "")))
    if not at_once and not (due and _is_worth_a_write(new, known, saved, at)):
        return new
    original = saved.replicas if saved is not None and saved.replicas >= 0 else service.spec.replicas
    changes = list(before.get("changes", ()))
    if changed:
        stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        changes.append(f"{stamp} {was} -> {verdict.engines}: {verdict.reason}")
    status = {
        "mode": service.spec.scaling.mode if service.spec.scaling else "Fixed",
        "replicas": verdict.engines,
        "needed": verdict.needed,
        "reason": verdict.reason,
        "changes": changes[-_CHANGES:],
        "state": serialise.dump(Saved(at, new.memory, original)),
    }
    return dataclasses.replace(
        new, status=status, judgement=verdict.judgement, published_at=at, generation=service.generation
    )


def _is_worth_a_write(new: Autoscaler, known: Autoscaler, saved: Saved | None, at: float) -> bool:
    verdict, said = new.verdict, known.judgement
    if (verdict.judgement.status, verdict.judgement.reason) != (said.status, said.reason):
        return True
    if verdict.needed != known.status.get("needed") or differs(str(known.status.get("reason", "")), verdict.reason):
        return True
    if saved is None:
        return True
    if 0 <= at - saved.at < KEEP_SECONDS:
        return False
    before, now = serialise.numbers(saved), serialise.numbers(Saved(at, new.memory))
    return len(before) != len(now) or any(is_significant(*pair) for pair in zip(before, now, strict=True))


def _events(before: int, new: Autoscaler, mode: str) -> list[EventRecord]:
    now = new.status["replicas"]
    if before == now:
        return []
    direction: Literal["Up", "Down"] = "Up" if now > before else "Down"
    reason = f"Scaled{direction}" if mode != "Advisory" else f"Advises{direction}"
    return [EventRecord("Normal", reason, f"{mode}: {before} -> {now} engines: {new.verdict.reason}")]
