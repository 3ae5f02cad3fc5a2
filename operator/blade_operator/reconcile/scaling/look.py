"""A look at what the routers of a service measure, and what is decided by it. Pure: who asks the routers is elsewhere.

The decision loop looks at each service every :data:`PERIOD` seconds and leaves the rest to a reconcile, which it asks
for only when there is something to write or to do. A reconcile looks itself only where nobody has yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from blade_operator.model.objects import Object
from blade_operator.model.scale_target import ScaleTarget
from blade_operator.reconcile.scaling.limits import limits_of
from blade_operator.reconcile.scaling.publish import is_condition_to_publish
from blade_operator.scaling.autoscaler import Autoscaler, Judgement, Verdict, without_times
from blade_operator.scaling.decide import decide
from blade_operator.scaling.load import Load
from blade_operator.scaling.policy import Limits, Policy
from blade_operator.scaling.signals import Measured, measure
from blade_protocol.signals import RouterSignals

PERIOD: Final = 10.0
"""Seconds between two decisions."""
GAP: Final = 180.0
"""Seconds without a decision after which what was needed lately is not known."""
UNMEASURED: Final = 120.0
"""Seconds of requests without a stream to measure after which the status says so."""
JUMP: Final = 2.0
"""Seconds by which a clock may go back."""
_EARLY: Final = 0.8
"""Of a period: a decision may come as much sooner."""
_LATE: Final = 3.0
"""Periods without a decision after which a reconcile asks the routers itself."""
_REASON: Final = 300
"""Characters."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a look comes to."""

    autoscaler: Autoscaler
    """To be remembered."""
    scales: bool
    """The number of engines is to change: the service is to be reconciled at once."""
    publishes: bool
    """The condition is another one: the service is to be reconciled. Numbers are written by its next resync."""


def is_due(known: Autoscaler, at: float) -> bool:
    """Whether the last decision is so old that there may be another one, or of the future."""
    return not 0 <= at - known.decided_at < _EARLY * PERIOD


def is_decided(known: Autoscaler | None, service: Object, at: float) -> bool:
    """Whether what is ``known`` of a service that is scaled by load is a recent decision, so that its reconcile asks no
    router. One without engines may be waited for: it is asked at once."""
    return (
        known is not None
        and known.uid == service["metadata"].get("uid")
        and known.status.get("mode") == service["spec"]["scaling"]["mode"]
        and known.status.get("replicas") != 0
        and 0 <= at - known.decided_at < _LATE * PERIOD
    )


def look(target: ScaleTarget, known: Autoscaler, signals: Mapping[str, RouterSignals], now: datetime) -> Found:
    """Decide by what the routers said, by pod name; those that did not respond are absent."""
    limits = limits_of(target.scaling, target.gpus, now)
    engines = target.wanted(limits)
    new = decided(known, target, signals, limits, engines, now)
    acts = target.scaling.mode != "Advisory"
    scales = acts and (new.verdict.engines != engines or engines != target.declared)
    return Found(new, scales, is_condition_to_publish(new, now.timestamp()))


def decided(
    known: Autoscaler,
    target: ScaleTarget,
    signals: Mapping[str, RouterSignals],
    limits: Limits,
    engines: int,
    now: datetime,
) -> Autoscaler:
    """``known`` after a decision, which is within the limits where it is acted upon; nothing is published yet."""
    scaling, at, memory = target.scaling, now.timestamp(), known.memory
    jumped = known.decided_at - at
    if jumped > JUMP or (known.measured_at and at - known.measured_at > GAP):
        memory = without_times(memory, at)
    if target.engines.start_seconds is not None:
        memory = dataclasses.replace(memory, start_seconds=target.engines.start_seconds)
    counted = target.engines.expected(engines, memory.start_seconds, at)
    percentile = scaling.slo.percentile if scaling.slo else 90
    found = measure(signals, target.routers, known.samples, counted, at, percentile)
    new = dataclasses.replace(known, memory=memory, samples=found.samples, decided_at=at)
    verdict = dataclasses.replace(known.verdict, engines=engines)
    if jumped > JUMP:
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
    judgement = _judgement(new, target, limits, decision.needed, decision.engines, found)
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
    target: ScaleTarget,
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
        if limits.budget is not None and policy.most == limits.budget.engines:
            message = f"spec.scaling.{limits.budget.field} allows {policy.most} engines, and more are needed"
            return Judgement("False", "BudgetLimited", message)
        return Judgement("False", "AtMaximum", f"{policy.most} engines are the most allowed, and more are needed")
    if new.unmeasured_since and new.decided_at - new.unmeasured_since >= UNMEASURED:
        what = "streams that report their usage" if found.load and found.load.ttft is not None else "streams"
        return Judgement("Unknown", "SLOUnmeasured", f"requests come, but no {what}, whose latencies could be measured")
    if not found.complete:
        return Judgement("Unknown", "SomeMetrics", "not every router responds: nothing is scaled down")
    mode, saved = target.scaling.mode, new.saved
    if mode != "Advisory" and saved is not None and target.replicas != saved.replicas >= 0:
        message = (
            f"somebody set spec.replicas to {target.replicas}, which mode {mode} does not read: remove "
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
