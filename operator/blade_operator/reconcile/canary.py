"""The canary: which share of the requests a new revision gets now, and whether it gets more or none.

With ``shadow`` it gets copies of requests before. At each step it first gets its engines and then its share; routers
count what its requests and those of the stable revision meet, and ``analysis`` judges them by that. It steps on after
the interval and enough requests, gets no share any more as soon as it is worse, and all engines after the last step.
All that is remembered is in ``status.canary`` and in the routers' configuration.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce

from blade_operator.analysis.compare import Judgement, Tolerances, judge
from blade_operator.analysis.shadow import judge_shadow
from blade_operator.model import pods as podutil
from blade_operator.model.canary import Canary, read_canary
from blade_operator.model.objects import Object
from blade_operator.model.observed import Observed
from blade_operator.model.plan import EventRecord
from blade_operator.reconcile.workloads import Workload
from blade_operator.spec.canary_fields import Canary as CanarySpec
from blade_operator.spec.parse import LLMService
from blade_operator.spec.quantity import parse_duration
from blade_operator.spec.rollout_fields import Rollout
from blade_protocol.labels import ABORTED, ROLE_ENGINE
from blade_protocol.routing import ShadowConfig
from blade_protocol.signals import RevisionSignals, add_revisions

LOOK = 2.0
"""Seconds between two looks at what routers have counted."""


def next_canary(
    service: LLMService,
    current: str,
    templates: Mapping[str, Object],
    workloads: Mapping[str, Workload],
    observed: Observed,
    now: datetime,
    *,
    proven: str = "",
    held: bool = False,
) -> Canary | None:
    """The canary as it is to be now; None without one.

    Args:
        current: the revision of the spec.
        templates: of the revisions in the history.
        proven: the last revision that was ready as a whole, if one is known.
        held: no step is taken for now.
    """
    spec = service.spec.rollout.canary
    if spec is None:
        return None
    canary = read_canary(observed.service)
    if canary is not None and canary.revision == current and canary.phase != "Withdrawn":
        if canary.stable not in (workloads if canary.phase == "Promoting" else templates):
            return None  # all engines are new; or nobody knows any more what the stable ones were like
        return _advance(canary, spec, service, observed, now, held)
    if canary is not None and canary.phase != "Promoting" and canary.stable in workloads:
        if canary.stable != current:
            return Canary(current, canary.stable)  # in place of the one before
        if canary.revision in workloads:
            return dataclasses.replace(canary, phase="Withdrawn", weight=0, since="")
        return None
    stable = _stable(current, proven, workloads, observed)
    return Canary(current, stable) if stable else None


def _stable(current: str, proven: str, workloads: Mapping[str, Workload], observed: Observed) -> str:
    """The revision that serves and is to be replaced; empty where none serves, or the current one has begun."""
    if current in workloads and workloads[current].replicas:
        return ""
    serving = [name for name in workloads if name != current and _ready(name, observed)]
    return max(serving, key=lambda name: (name == proven, _ready(name, observed), workloads[name].created), default="")


def _advance(
    canary: Canary, spec: CanarySpec, service: LLMService, observed: Observed, now: datetime, held: bool
) -> Canary:
    """What comes after ``canary`` by what is observed."""
    if not canary.on_trial:
        return canary
    if (reason := _aborted(service.name, canary.revision, observed)) is not None:
        return dataclasses.replace(canary, phase="Aborted", weight=0, since="", reason=reason)
    if canary.phase == "Shadowing":
        canary, enough = _shadowed(canary, spec, service, observed)
        if not enough:
            return canary
    elif canary.weight:
        judgement = _judge(canary, spec, observed)
        if judgement.bad:
            reason = f"at {canary.weight} % of the requests: {'; '.join(judgement.bad)}"
            return dataclasses.replace(canary, phase="Aborted", weight=0, since="", reason=reason)
        if canary.phase == "Running":
            long_enough = podutil.age(canary.since, now) >= parse_duration(spec.interval)
            if not long_enough or judgement.requests < spec.min_requests:
                return canary
    if held:
        return canary
    step = next_step(canary, spec)
    if step is None:
        return dataclasses.replace(canary, phase="Promoting", weight=0, since="")
    needed = engines_at(step, service.spec.replicas)
    if not needed or _ready(canary.revision, observed) < needed:
        return canary if canary.phase == "Shadowing" else dataclasses.replace(canary, phase="Waiting")
    since = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if spec.shadow is not None and canary.phase == "Waiting" and not canary.weight:
        return dataclasses.replace(canary, phase="Shadowing", since=since)
    return dataclasses.replace(canary, phase="Running", weight=step, since=since)


def _shadowed(canary: Canary, spec: CanarySpec, service: LLMService, observed: Observed) -> tuple[Canary, bool]:
    """The canary that gets copies of requests, and whether it may get requests."""
    if spec.shadow is None:
        return canary, True
    if not _ready(canary.revision, observed):
        return dataclasses.replace(canary, phase="Waiting", since=""), False
    found = [
        each for signals in observed.signals.values() for each in signals.shadows if each.revision == canary.revision
    ]
    judgement = judge_shadow(found, canary.stable, _tolerances(spec), len(spec.steps))
    if judgement.bad:
        reason = f"as a shadow, before it got any request: {'; '.join(judgement.bad)}"
        return dataclasses.replace(canary, phase="Aborted", weight=0, since="", reason=reason), False
    least = spec.shadow.min_requests
    if judgement.compared >= least:
        return dataclasses.replace(canary, note=judgement.result()), True
    note = judgement.progress(least)
    if service.spec.router.image:
        note = "routers of router.image send none, as it may be too old to know of them"
    return dataclasses.replace(canary, note=note), False


def shadow_config(canary: Canary | None, service: LLMService) -> ShadowConfig | None:
    """What routers are to copy. Its engines get no more of the load than each of the others has.

    None to an image of the user's own: it may not know of copies, and would refuse the whole configuration.
    """
    spec, replicas = service.spec.rollout.canary, service.spec.replicas
    if canary is None or canary.phase != "Shadowing" or spec is None or spec.shadow is None or not replicas:
        return None
    if service.spec.router.image:
        return None
    engines = engines_at(next_step(canary, spec) or 100, replicas)
    return ShadowConfig(revision=canary.revision, share=float(min(spec.shadow.share, 100 * engines // replicas)))


def _judge(canary: Canary, spec: CanarySpec, observed: Observed) -> Judgement:
    """What the routers that follow the present weights have counted, judged."""
    weights = {canary.revision: canary.weight, canary.stable: 100 - canary.weight}
    found: dict[str, list[RevisionSignals]] = {name: [] for name in weights}
    for signals in observed.signals.values():
        mine = {each.revision: each for each in signals.revisions if weights.get(each.revision) == each.weight}
        if mine.keys() == weights.keys():
            for name, each in mine.items():
                found[name].append(each)
    if not found[canary.revision]:
        return Judgement(0)
    new, old = (reduce(add_revisions, found[name]) for name in (canary.revision, canary.stable))
    return judge(new, old, _tolerances(spec), len(spec.steps), shadowed=spec.shadow is not None)


def _tolerances(spec: CanarySpec) -> Tolerances:
    return Tolerances(latency=1 + spec.latency_tolerance / 100, answers=spec.answer_tolerance / 100)


def next_step(canary: Canary, spec: CanarySpec) -> int | None:
    """The share after the present one; None after the last."""
    return min((step for step in spec.steps if step > canary.weight), default=None)


def engines_at(share: int, replicas: int) -> int:
    """Engines that serve a share of the requests in percent."""
    return math.ceil(replicas * share / 100)


@dataclass(frozen=True, slots=True)
class Trial:
    """The engines of a canary at the step it is at or waits for."""

    engines: int
    """Its own, at most."""
    kept: Mapping[str, int]
    """The stable revision, and how many engines of it stay or come back."""


def trial_of(canary: Canary, rollout: Rollout, replicas: int, counts: Mapping[str, int]) -> Trial | None:
    """The engines of a canary and beside it; None while it has none, or is none any more.

    As many as their shares need; what surge there is beyond that keeps the stable ones, to which an abort gives all.
    It begins once no third revision is left. ``counts``: engines of each revision now.
    """
    spec = rollout.canary
    if spec is None or not canary.on_trial:
        return None
    others = sum(count for name, count in counts.items() if name not in (canary.revision, canary.stable))
    if others and not counts.get(canary.revision):
        return None
    step = canary.weight if canary.phase == "Running" else next_step(canary, spec) or canary.weight
    new = engines_at(step, replicas)
    least = max(engines_at(100 - step, replicas), min(replicas, replicas + rollout.max_surge - new))
    return Trial(new, {canary.stable: least})


def is_watched(canary: Canary | None) -> bool:
    """Whether routers are to be asked soon again."""
    return canary is not None and canary.phase in ("Shadowing", "Running")


def canary_weights(canary: Canary | None, workloads: Mapping[str, Workload]) -> dict[str, float]:
    """Weights for the routers, by revision; empty where engines get requests by their load.

    Revisions that are younger than the stable one were canaries themselves and get nothing. Older ones still serve.
    """
    if canary is None or canary.phase == "Promoting":
        return {}
    weights: dict[str, float] = {canary.revision: canary.weight, canary.stable: 100 - canary.weight}
    if (stable := workloads.get(canary.stable)) is not None:
        for name, workload in workloads.items():
            if workload.created > stable.created:
                weights.setdefault(name, 0)
    return weights


def abort_note(canary: Canary | None) -> str:
    """What the routers' ConfigMap says of an abort: status and configuration are two writes, and the operator may end
    between them."""
    return f"{canary.revision}: {canary.reason}" if canary is not None and canary.phase == "Aborted" else ""


def _aborted(name: str, revision: str, observed: Observed) -> str | None:
    """Why the canary of ``revision`` was aborted, by the routers' ConfigMap; None: it was not."""
    for obj in observed.config_maps:
        if obj["metadata"]["name"] == f"{name}-router":
            noted, _, reason = str((obj["metadata"].get("annotations") or {}).get(ABORTED, "")).partition(": ")
            return reason if noted == revision else None
    return None


def canary_events(before: Canary | None, after: Canary | None) -> list[EventRecord]:
    """An Event for each change of the share. That of an abort is the condition's."""
    if after is None or (before is not None and (before.phase, before.weight) == (after.phase, after.weight)):
        return []
    if after.phase == "Shadowing":
        return [EventRecord("Normal", "CanaryShadow", f"revision {after.revision} gets copies of requests")]
    if after.phase == "Running":
        step = EventRecord("Normal", "CanaryStep", f"revision {after.revision} gets {after.weight} % of the requests")
        passed = [EventRecord("Normal", "CanaryShadowPassed", after.note)] if after.note else []
        return [*passed, step]
    if after.phase == "Promoting":
        return [EventRecord("Normal", "CanaryPassed", f"revision {after.revision} is as good as {after.stable}")]
    return []


def _ready(revision: str, observed: Observed) -> int:
    """Engines of a revision that are ready."""
    return sum(
        podutil.role(pod) == ROLE_ENGINE and podutil.revision(pod) == revision and podutil.is_ready(pod)
        for pod in observed.pods
    )
