"""How many engines of each revision there should be now, from what is observed of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from blade_operator.model import pods as podutil
from blade_operator.model.canary import Canary, read_canary
from blade_operator.model.observed import Observed
from blade_operator.model.rollout import RolloutState
from blade_operator.reconcile.canary import Trial, next_canary, trial_of
from blade_operator.reconcile.deadline import count_engines, judge
from blade_operator.reconcile.revisions import Revisions
from blade_operator.reconcile.rollout import RevisionPods, base_revision, held_counts, replica_counts
from blade_operator.reconcile.scaling.scale import with_replicas
from blade_operator.reconcile.standby import with_warm_as_ready
from blade_operator.reconcile.window import is_open, next_opening, window_problem
from blade_operator.reconcile.workloads import Workload
from blade_operator.spec.parse import LLMService
from blade_protocol.labels import ROLE_ENGINE


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The engines there should be now."""

    counts: dict[str, int]
    """By revision; the workload of one that is missing is to be deleted."""
    state: RolloutState
    canary: Canary | None = None
    beside: Mapping[str, int] = field(default_factory=dict)
    """Engines of the stable revision that serve beside a canary on trial, all of whose engines serve."""


def plan_engines(
    service: LLMService,
    revisions: Revisions,
    workloads: Mapping[str, Workload],
    observed: Observed,
    now: datetime,
    *,
    waits_for_routers: bool,
    standby: int = 0,
) -> EnginePlan:
    """The engines of each revision, and where the change to the current one stands.

    Args:
        waits_for_routers: the current revision has no engine yet, and gets none now; the newest before it is scaled in
            its place.
        standby: engines beyond those that serve. What stands by counts as ready, but serves no canary's share.
    """
    whole, serving = with_replicas(service, service.spec.replicas + standby), observed
    observed = with_warm_as_ready(observed, now)
    window = service.spec.rollout.window
    invalid = window_problem(window)
    closed = window is not None and (bool(invalid) or not is_open(window, now))
    pods = _Pods(revisions.current, workloads, observed)
    waits = (service.spec.rollout.paused or closed) and pods.change_waits
    before = read_canary(observed.service)
    # A canary at a step makes no other progress than to answer requests, or copies of them; an aborted one makes none.
    at_step = (
        before is not None
        and before.revision == revisions.current
        and before.phase in ("Shadowing", "Running", "Aborted")
    )
    state = judge(
        whole,
        observed.service.get("status") or {},
        revisions.current,
        count_engines(observed.pods, observed.downloads, revisions.current),
        {*revisions.templates, *workloads},
        now,
        begun=pods.current.desired > 0,
        held=waits or at_step,
    )
    state = replace(state, invalid_window=invalid)
    canary, trial, beside = None, None, dict[str, int]()
    if not state.failed:
        canary = next_canary(
            service, revisions.current, revisions.templates, workloads, serving, now, proven=state.stable, held=waits
        )
    if canary is not None:
        there = {name: workload.replicas for name, workload in workloads.items()}
        trial = trial_of(canary, service.spec.rollout, service.spec.replicas, there)
        waits = waits and canary.phase not in ("Aborted", "Withdrawn")
        if trial is None:
            state = replace(state, target=canary.serving)
        else:
            beside = dict(trial.kept)
            trial = replace(trial, kept={name: count + standby for name, count in beside.items()})
    stable = state.stable if state.stable in workloads else ""
    if waits and not state.failed:
        held = held_counts(
            whole.spec.replicas,
            pods.current,
            pods.others,
            max_surge=service.spec.rollout.max_surge,
            stable=stable,
        )
        counts = {name: count for name, count in held.items() if name in workloads or count}
        if not pods.current.desired and not pods.current.active:
            state = replace(state, target=base_revision(pods.current, pods.others, stable).revision)
        state = replace(state, held="Paused" if service.spec.rollout.paused else "WaitingForWindow")
        if state.held == "WaitingForWindow" and window is not None and not invalid:
            opening = next_opening(window, now)
            state = replace(state, held_message=f"it opens at {opening:%Y-%m-%dT%H:%M:%SZ}" if opening else "")
        return EnginePlan(counts, state, canary, beside)
    return EnginePlan(_counts(whole, state, pods, trial, waits=waits_for_routers), state, canary, beside)


class _Pods:
    """The pods of each revision; the earlier revisions oldest first."""

    def __init__(self, current: str, workloads: Mapping[str, Workload], observed: Observed) -> None:
        self.workloads = workloads
        self._engines = [
            pod for pod in observed.pods if podutil.role(pod) == ROLE_ENGINE and not podutil.is_finished(pod)
        ]
        # Pods whose workload is gone still use resources until they have ended.
        self._known = {*workloads, *map(podutil.revision, self._engines)}
        self.current = self.of(current)
        self.others = self.besides(current)

    def besides(self, revision: str) -> list[RevisionPods]:
        """Those of all revisions but this one."""
        others = sorted(self._known - {revision})
        return [self.of(each) for each in sorted(others, key=self.created)]

    def created(self, revision: str) -> str:
        return self.workloads[revision].created if revision in self.workloads else ""

    def of(self, revision: str) -> RevisionPods:
        mine = [pod for pod in self._engines if podutil.revision(pod) == revision]
        count = self.workloads[revision].replicas if revision in self.workloads else 0
        terminating = sum(map(podutil.is_terminating, mine))
        ready = sum(map(podutil.is_ready, mine))
        return RevisionPods(revision, count, active=len(mine) - terminating, terminating=terminating, ready=ready)

    @property
    def change_waits(self) -> bool:
        """Whether there are engines of an earlier revision to be replaced, or were before a scale to zero."""
        earlier = [pods for pods in self.others if pods.revision in self.workloads]
        if any(pods.desired for pods in earlier):
            return True
        return bool(earlier) and self.current.revision not in self.workloads


def _counts(
    service: LLMService, state: RolloutState, pods: _Pods, trial: Trial | None, *, waits: bool
) -> dict[str, int]:
    """The counts of a change that goes on, or goes back. ``trial``: of a canary that has engines, or gets some."""
    current, target = pods.current.revision, state.target
    waits = waits and target == current
    if waits:
        counts = {revision: workload.replicas for revision, workload in pods.workloads.items()}
        earlier = [name for name, count in counts.items() if count and name != current]
        if not earlier:
            return counts | {current: 0}
        target = max(earlier, key=pods.created)
    trial = None if waits else trial
    kept = {} if trial is None else trial.kept
    others, rollout = [each for each in pods.besides(target) if each.revision not in kept], service.spec.rollout
    others += map(pods.of, kept)
    planned = replica_counts(
        service.spec.replicas,
        pods.of(target),
        others,
        max_surge=rollout.max_surge,
        max_unavailable=rollout.max_unavailable,
        most=None if trial is None else trial.engines,
        kept=kept,
    )
    gone = {each.revision for each in others if each.gone}
    waiting = {current: 0} if waits else {}
    return waiting | {
        revision: count
        for revision, count in planned.items()
        if revision == target or revision in kept or (revision in pods.workloads and revision not in gone)
    }
