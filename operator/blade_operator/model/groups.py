"""Groups: the pods of one engine on several machines. They are one replica, which runs, fails and leaves as one.

All that decides or reports on engines sees a group as one pod, `Group.as_pod`: its leader, ready once every pod is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from blade_operator.model import pods as podutil
from blade_operator.model.controllers import LEADER_WORKER_SET, pods_of
from blade_operator.model.objects import Object
from blade_protocol.labels import MEMBERS, REPLICA_GROUP, REVISION, ROLE, ROLE_ENGINE


@dataclass(frozen=True, slots=True)
class Group:
    """One engine on several machines."""

    revision: str
    number: int
    """Its number among the engines of its revision."""
    obj: Object | None
    """Its StatefulSet or LeaderWorkerSet. None: it is deleted, and only its pods are still there."""
    pods: tuple[Object, ...]
    """Its pods that have not ended for good, in the order of machines."""

    @property
    def name(self) -> str:
        """Of its StatefulSet or LeaderWorkerSet; empty when that is deleted."""
        return str(self.obj["metadata"]["name"]) if self.obj else ""

    @property
    def nodes(self) -> int:
        """Pods that it has when it is whole."""
        return pods_of(self.obj) if self.obj else len(self.pods)

    @property
    def leader(self) -> Object | None:
        """The pod that gets the requests; None while there is none."""
        return next((pod for pod in self.pods if machine_of(pod) == 0), None)

    @property
    def members(self) -> str:
        """A hash of the pods and of their engines' restarts: it changes when a member goes."""
        staying = (pod for pod in self.pods if not podutil.is_terminating(pod))
        lines = sorted(f"{pod['metadata'].get('uid', '')} {_restarts(pod)}" for pod in staying)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    @property
    def is_whole(self) -> bool:
        """Whether every pod is there and ready."""
        return len(self.pods) == self.nodes and all(map(podutil.is_ready, self.pods))

    @property
    def known_members(self) -> str:
        """`members` as it was when the group was whole for the first time; empty before."""
        annotations = (self.obj or {}).get("metadata", {}).get("annotations") or {}
        return str(annotations.get(MEMBERS, ""))

    @property
    def is_broken(self) -> bool:
        """Whether a member has gone since the group was whole: what the others compute with it is lost."""
        return self.known_members not in ("", self.members)

    @property
    def is_leaving(self) -> bool:
        """Whether its pods are about to be deleted, or are."""
        return self.obj is None or self.is_broken

    def as_pod(self) -> Object:
        """The group as one pod: that of its leader, or of another member while it has none."""
        pod = as_engine(self.pods[0])
        metadata = {name: value for name, value in pod["metadata"].items() if name != "deletionTimestamp"}
        if self.is_leaving:
            since = [each["metadata"].get("deletionTimestamp") for each in self.pods]
            metadata["deletionTimestamp"] = max(filter(None, since), default=metadata.get("creationTimestamp", ""))
        status = pod.get("status", {})
        conditions = [each for each in status.get("conditions") or () if each["type"] != "Ready"]
        ready = {**podutil.condition(pod, "Ready"), "type": "Ready", "status": "True" if self.is_whole else "False"}
        return {**pod, "metadata": metadata, "status": {**status, "conditions": [*conditions, ready]}}


def find_groups(objs: Iterable[Object], pods: Iterable[Object]) -> list[Group]:
    """Every group of a service, those of one revision in the order of their numbers; ``objs``: see `Group.obj`."""
    sets, members = {}, dict[tuple[str, int], list[Object]]()
    for obj in objs:
        if (key := _key_of(obj)) is not None:
            sets[key] = obj
    for pod in pods:
        key = _key(pod["metadata"].get("labels") or {})
        if key is not None and not podutil.is_finished(pod):
            members.setdefault(key, []).append(pod)
    return [
        Group(*key, sets.get(key), tuple(sorted(members.get(key, ()), key=machine_of)))
        for key in sorted({*sets, *members})
    ]


def is_member(pod: Object) -> bool:
    """Whether ``pod`` is one of several of an engine."""
    return REPLICA_GROUP in (pod["metadata"].get("labels") or {})


def machine_of(pod: Object) -> int:
    """Which of its engine's machines a pod is, from 0 on: the end of its name, since labels can be removed.

    The pods of a StatefulSet S are S-0, S-1 …; those of a LeaderWorkerSet S are S-0, S-0-1, S-0-2 …
    """
    number = str(pod["metadata"]["name"]).rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def as_engine(pod: Object) -> Object:
    """``pod`` with the role of an engine, whatever its own is."""
    labels = {**(pod["metadata"].get("labels") or {}), ROLE: ROLE_ENGINE}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}}


def _key_of(obj: Object) -> tuple[str, int] | None:
    """Revision and number, by what is immutable: labels are not. A LeaderWorkerSet has no selector."""
    if obj["kind"] == LEADER_WORKER_SET:
        _, revision, number = f"--{obj['metadata']['name']}".rsplit("-", 2)
        return _key({REVISION: revision, REPLICA_GROUP: number})
    return _key(obj["spec"]["selector"].get("matchLabels") or {})


def _key(labels: Object) -> tuple[str, int] | None:
    revision, number = labels.get(REVISION), str(labels.get(REPLICA_GROUP, ""))
    return (str(revision), int(number)) if revision and number.isdecimal() else None


def _restarts(pod: Object) -> int:
    engine = podutil.container(pod, podutil.ENGINE)
    return engine.restarts if engine else 0
