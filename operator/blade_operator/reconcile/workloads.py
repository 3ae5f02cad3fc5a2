"""What runs the engines of a revision: a Deployment, or a group of pods for each engine on several machines.

How many engines of which revision there should be is decided without regard to this. A group is made and deleted as a
whole. One that has lost a member after it was whole is replaced by another: nothing of it can answer any more.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from blade_operator.model import pods as podutil
from blade_operator.model.controllers import LEADER_WORKER_SET, STATEFUL_SET, pod_template_of
from blade_operator.model.groups import Group, as_engine, find_groups, is_member, machine_of
from blade_operator.model.objects import Object, Ref
from blade_operator.model.observed import Observed
from blade_operator.model.plan import EventRecord
from blade_operator.reconcile.scale_down import leaving, marked
from blade_operator.render import Defaults, engine_deployment, engine_group, nodes_of, with_members
from blade_operator.spec.parse import LLMService
from blade_protocol.labels import DELETION_COST, DRAINING_SINCE, REVISION, ROLE, ROLE_ENGINE


@dataclass(frozen=True, slots=True)
class Workload:
    """What runs the engines of one revision now."""

    deployment: Object | None = None
    groups: tuple[Group, ...] = ()
    """Those whose object is there."""

    @property
    def replicas(self) -> int:
        """Desired engines. A group that is to be replaced counts: another one takes its place."""
        return int(self.deployment["spec"].get("replicas", 1)) if self.deployment else len(self.groups)

    @property
    def objects(self) -> list[Object]:
        """The Deployment, or the StatefulSets and LeaderWorkerSets."""
        sets = [group.obj for group in self.groups if group.obj]
        return [self.deployment, *sets] if self.deployment else sets

    @property
    def created(self) -> str:
        """When the oldest of these was made."""
        return min(str(obj["metadata"].get("creationTimestamp", "")) for obj in self.objects)

    @property
    def template(self) -> Object:
        """The pod template that it runs with."""
        return pod_template_of(self.objects[0])


@dataclass(slots=True)
class WorkloadChange:
    """What brings one revision to the number of engines it should have."""

    desired: list[Object] = field(default_factory=list)
    delete: list[Ref] = field(default_factory=list)


def find_workloads(observed: Observed, groups: Sequence[Group]) -> dict[str, Workload]:
    """The workloads of a service by revision. Deployments are identified by their selectors, which are immutable."""
    found: dict[str, Workload] = {}
    for group in groups:
        if group.obj is not None:
            known = found.get(group.revision, Workload())
            found[group.revision] = dataclasses.replace(known, groups=(*known.groups, group))
    for deployment in observed.deployments:
        labels = deployment["spec"]["selector"].get("matchLabels") or {}
        if labels.get(ROLE) == ROLE_ENGINE and REVISION in labels:
            found[labels[REVISION]] = Workload(deployment)
    return found


def groups_of(observed: Observed) -> list[Group]:
    """The groups of a service."""
    return find_groups(observed.group_objects, observed.pods)


def group_kind(defaults: Defaults, observed: Observed) -> str:
    """The kind of the objects of new groups. A group that is there keeps its own until it is replaced."""
    if defaults.group_kind != "auto":
        return defaults.group_kind
    return LEADER_WORKER_SET if observed.has_leader_worker_sets else STATEFUL_SET


def with_groups_as_pods(observed: Observed, groups: Sequence[Group]) -> Observed:
    """``observed`` with one pod for each group, and with those of its pods that have ended for good."""
    single = [
        as_engine(pod) if is_member(pod) else pod
        for pod in observed.pods
        if not is_member(pod) or podutil.is_finished(pod)
    ]
    return dataclasses.replace(observed, pods=(*single, *(group.as_pod() for group in groups if group.pods)))


def change_workload(
    service: LLMService,
    revision: str,
    template: Object,
    replicas: int,
    workload: Workload,
    groups: Sequence[Group],
    observed: Observed,
    kind: str,
) -> WorkloadChange:
    """What makes ``replicas`` engines of ``revision``; ``groups``: all of the service; ``kind``: of new groups."""
    if nodes_of(template) == 1:
        return WorkloadChange([engine_deployment(service, revision, template, replicas)])
    whole = [group for group in workload.groups if not group.is_leaving]
    removed = _surplus(whole, len(whole) - replicas, observed)
    kept = [group for group in whole if group not in removed]
    gone = [group for group in workload.groups if group.is_leaving]
    change = WorkloadChange(delete=refs_of(Workload(groups=(*removed, *gone))))
    for group in kept:
        members = group.known_members or (group.members if group.is_whole else "")
        if group.obj is not None and group.obj["kind"] == LEADER_WORKER_SET:
            change.desired += [with_members(service, group.obj, members)] if members != group.known_members else []
        else:
            change.desired.append(engine_group(service, revision, template, group.number, members))
    # Pods of a group that leaves keep their names until they have ended.
    taken = {group.number for group in groups if group.revision == revision}
    free = (number for number in itertools.count() if number not in taken)
    for number in itertools.islice(free, max(0, replicas - len(kept))):
        change.desired.append(engine_group(service, revision, template, number, kind=kind))
    return change


def _surplus(groups: Sequence[Group], surplus: int, observed: Observed) -> list[Group]:
    """The groups to delete: those without pods, then those that have been drained."""
    by_pod = {group.pods[0]["metadata"]["name"]: group for group in groups if group.pods}
    empty = [group for group in groups if not group.pods]
    pods = [pod for pod in observed.pods if pod["metadata"]["name"] in by_pod]
    order = [*empty, *(by_pod[pod["metadata"]["name"]] for pod in leaving(pods, len(pods), observed.engines))]
    return order[: max(0, surplus)]


def refs_of(workload: Workload) -> list[Ref]:
    """The objects of a workload, to delete them."""
    return [Ref.of(obj) for obj in workload.objects]


def leader_marks(groups: Sequence[Group], marks: Sequence[Object]) -> list[Object]:
    """Leaders to apply, so that they become engines for routers: their pods are made like those of all members.

    ``marks``: pods that are applied anyway.
    """
    applied = {mark["metadata"]["name"] for mark in marks}
    leaders = [group.leader for group in groups if not group.is_leaving]
    return [
        marked(pod, _own_annotations(pod))
        for pod in leaders
        if pod is not None
        and podutil.role(pod) != ROLE_ENGINE
        and not podutil.is_terminating(pod)
        and pod["metadata"]["name"] not in applied
    ]


def _own_annotations(pod: Object) -> dict[str, str]:
    annotations: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    return {name: annotations[name] for name in (DELETION_COST, DRAINING_SINCE) if name in annotations}


def replacement_events(workloads: Mapping[str, Workload]) -> list[EventRecord]:
    """An Event for each group that is replaced, with what its members say: they are gone soon."""
    return [
        EventRecord("Warning", "GroupReplaced", f"{_cause(group)}; all pods of the engine are replaced")
        for workload in workloads.values()
        for group in workload.groups
        if group.is_broken
    ]


def _cause(group: Group) -> str:
    """Restarts from before the group was whole are no cause where a pod is gone."""
    for pod in group.pods:
        if podutil.is_terminating(pod):
            return f"{_member(group, pod)} was deleted"
    if len(group.pods) < group.nodes:
        return f"a pod of engine {group.name} was deleted"
    engines = [(pod, podutil.container(pod, podutil.ENGINE)) for pod in group.pods]
    ended = [(pod, engine.termination) for pod, engine in engines if engine]
    restarted = [(pod, engine.last_termination) for pod, engine in engines if engine]
    for pod, end in (*ended, *restarted):
        if end is not None:
            line = end.message.strip().rpartition("\n")[2]
            return f"{_member(group, pod)} ended with exit {end.exit_code}{f': {line}' if line else ''}"
    return f"a pod of engine {group.name} was replaced"


def _member(group: Group, pod: Object) -> str:
    return f"pod {pod['metadata']['name']} (machine {machine_of(pod)} of {group.nodes})"
