"""The warm pool: engines beyond those that serve, which wait without a KV cache until they are needed.

They are engines of the same workload as the others: what replaces engines replaces them, and for rollouts they count as
ready. Which engines wait follows from how many are there: as many serve as were decided on, and of the rest up to
``spec.scaling.standby`` wait. So one is woken when more are to serve and when one that serves is lost, and one that
serves takes its place when fewer are to.

A pod is marked before its engine drains, and the mark goes when the engine takes requests again: an operator that is
killed anywhere finds what it was at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.model.observed import Observed
from blade_operator.model.plan import DrainPod, EventRecord
from blade_operator.reconcile.scale_down import (
    DRAIN_REQUEUE,
    MAX_DRAIN_REQUEUE,
    STANDBY_COST,
    cached_tokens,
    leaving,
    marked,
    requests,
)
from blade_operator.reconcile.scaling.limits import budget_of
from blade_operator.spec.parse import LLMService
from blade_protocol.labels import DELETION_COST, ROLE_ENGINE, STANDBY_SINCE, WOKEN_AT

WAKE_SECONDS: Final = 10.0
"""Seconds in which an engine that is woken counts as one that is ready, and nothing that serves leaves for it."""


@dataclass(slots=True)
class Pool:
    """The warm pool, and what to do for it now."""

    standing_by: int = 0
    """Engines that are marked, and stay."""
    waking: bool = False
    """Some are not ready yet, and are soon."""
    marks: list[Object] = field(default_factory=list)
    """Pods to apply: only what the operator says of them."""
    actions: list[DrainPod] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    requeue: list[float] = field(default_factory=list)


def pool_size(service: LLMService) -> int:
    """Engines that are to be there beyond those that serve (``spec.replicas``), within the budget."""
    scaling, gpus = service.spec.scaling, service.spec.engine.gpus
    if scaling is None:
        return 0
    budget = budget_of(scaling, gpus.count * gpus.nodes)
    if budget is None:
        return scaling.standby
    return min(scaling.standby, max(0, budget.engines - service.spec.replicas))


def with_warm_as_ready(observed: Observed, now: datetime) -> Observed:
    """``observed``, where engines that stand by or wake are as ready as those that serve."""
    pods = tuple(_as_ready(pod) if _is_warm(pod, now) else pod for pod in observed.pods)
    return dataclasses.replace(observed, pods=pods)


def with_pool(status: Mapping[str, Any] | None, size: int, pool: Pool) -> Mapping[str, Any] | None:
    """``status.scaling`` with the engines that stand by; without a pool it says nothing of them."""
    if status is None:
        return None
    others = {name: value for name, value in status.items() if name != "standby"}
    return others | ({"standby": pool.standing_by} if size or pool.standing_by else {})


def keep_pool(
    service: LLMService,
    size: int,
    counts: Mapping[str, int],
    observed: Observed,
    now: datetime,
    *,
    target: str,
    beside: Mapping[str, int],
) -> Pool:
    """What keeps ``size`` engines standing by while ``spec.replicas`` serve.

    Args:
        counts: engines that are to be there, by revision.
        target: the revision that they all are to have; an engine of another one stands by rather.
        beside: while a canary is on trial, how many engines of which other revision serve. All of its own do.
    """
    pool, wanted = Pool(), service.spec.replicas
    if not size and not any(podutil.standby_since(pod) or podutil.woken_at(pod) for pod in observed.pods):
        return pool
    staying = _staying(counts, with_warm_as_ready(observed, now))
    marked_ones = [pod for pod in staying if podutil.standby_since(pod)]
    ready = {_name(pod) for pod in observed.pods if podutil.is_ready(pod)}
    available = [pod for pod in staying if podutil.is_ready(pod)]
    able, needed = available, wanted
    if beside and wanted:
        able, needed = [pod for pod in available if podutil.revision(pod) in beside], sum(beside.values())
    # At zero nothing serves, also not what a rollout has beyond the pool for a while.
    spare = min(size if wanted else len(able), len(able) - needed) if size else 0
    chosen = {_name(pod) for pod in _by_value(able, target, observed)[: max(0, spare)]}
    serving = sum(_name(pod) in ready and not podutil.standby_since(pod) for pod in able)
    for pod in able:
        if _name(pod) in chosen and not podutil.standby_since(pod) and serving > needed:
            serving -= 1
            _mark(pod, now, pool)
    for pod in marked_ones:
        if _name(pod) in chosen:
            _keep(pod, observed, pool)
        elif podutil.woken_at(pod) or podutil.is_ready(pod):
            _wake(pod, observed, now, pool)
    pool.waking = pool.waking or any(_is_waking(pod, now) and _name(pod) not in ready for pod in staying)
    return pool


def _staying(counts: Mapping[str, int], observed: Observed) -> list[Object]:
    """The engines that no scaling down and no rollout takes away now."""
    found: list[Object] = []
    for revision, count in counts.items():
        pods = [
            pod
            for pod in observed.pods
            if podutil.role(pod) == ROLE_ENGINE and podutil.revision(pod) == revision and podutil.is_active(pod)
        ]
        going = {_name(pod) for pod in leaving(pods, len(pods) - count, observed.engines)}
        found += [pod for pod in pods if _name(pod) not in going and not podutil.draining_since(pod)]
    return found


def _by_value(pods: Iterable[Object], target: str, observed: Observed) -> list[Object]:
    """Those first that rather stand by: those that do, those of another revision than the target, then those with the
    fewest requests, and of these the ones whose prefix cache has saved the least; the youngest of equals."""

    def value(pod: Object) -> tuple[bool, bool, int, int]:
        return (
            not podutil.stands_by(pod),
            podutil.revision(pod) == target,
            requests(pod, observed.engines),
            cached_tokens(pod, observed.engines),
        )

    youngest_first = sorted(pods, key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), _name(pod)))[::-1]
    return sorted(youngest_first, key=value)


def _mark(pod: Object, now: datetime, pool: Pool) -> None:
    """It is to stand by, and drains once the mark is there."""
    pool.marks.append(marked(pod, {STANDBY_SINCE: _stamp(now), DELETION_COST: STANDBY_COST}, without=(WOKEN_AT,)))
    pool.events.append(EventRecord("Normal", "Standby", f"{_name(pod)} stands by"))
    pool.requeue.append(DRAIN_REQUEUE)


def _keep(pod: Object, observed: Observed, pool: Pool) -> None:
    """It stands by, or comes to: one whose engine has restarted has to be asked again."""
    pool.standing_by += 1
    if podutil.woken_at(pod):  # it is not needed after all
        pool.marks.append(marked(pod, {DELETION_COST: STANDBY_COST}, without=(WOKEN_AT,)))
    state = observed.engines.get(_name(pod))
    if state is not None and not state.draining:
        pool.actions.append(DrainPod(_name(pod), standby=True))
        pool.requeue.append(DRAIN_REQUEUE)


def _wake(pod: Object, observed: Observed, now: datetime, pool: Pool) -> None:
    """It is to serve: it is asked until it does, ever more seldom."""
    woken, state = podutil.woken_at(pod), observed.engines.get(_name(pod))
    if woken and state is not None and not state.draining:
        pool.marks.append(marked(pod, {}, without=(STANDBY_SINCE,)))
        return
    if not woken:
        since = podutil.age(podutil.standby_since(pod), now)
        pool.marks.append(marked(pod, {WOKEN_AT: _stamp(now)}))
        pool.events.append(EventRecord("Normal", "StandbyWoken", f"{_name(pod)} serves after {since:.0f} s"))
        pool.waking = True
    pool.actions.append(DrainPod(_name(pod), draining=False))
    waited = podutil.age(woken, now) if woken else 0.0
    pool.requeue.append(min(MAX_DRAIN_REQUEUE, max(DRAIN_REQUEUE, waited / 10)))


def _is_warm(pod: Object, now: datetime) -> bool:
    """Whether it could answer within a second: its engine runs, and it stands by or wakes."""
    if not (podutil.stands_by(pod) or _is_waking(pod, now)) or not podutil.is_active(pod):
        return False
    engine = podutil.container(pod, podutil.ENGINE)
    return engine is not None and engine.running and engine.started


def _is_waking(pod: Object, now: datetime) -> bool:
    return bool(podutil.woken_at(pod)) and podutil.age(podutil.woken_at(pod), now) < WAKE_SECONDS


def _as_ready(pod: Object) -> Object:
    status = pod.get("status", {})
    others = [each for each in status.get("conditions") or () if each["type"] != "Ready"]
    ready = {**podutil.condition(pod, "Ready"), "type": "Ready", "status": "True"}
    return {**pod, "status": {**status, "conditions": [*others, ready]}}


def _stamp(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])
