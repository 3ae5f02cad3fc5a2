"""The objects whose controllers make pods: Deployments, StatefulSets and LeaderWorkerSets, and what they share."""

from __future__ import annotations

from typing import Final

from blade_operator.model.objects import Object

STATEFUL_SET: Final = "StatefulSet"
LEADER_WORKER_SET: Final = "LeaderWorkerSet"
LEADER_WORKER_SET_VERSION: Final = "leaderworkerset.x-k8s.io/v1"
"""Its ``apiVersion``; the kind comes with the LeaderWorkerSet controller, which few clusters have."""
CONTROLLERS: Final = ("Deployment", STATEFUL_SET, LEADER_WORKER_SET)
"""Kinds of these objects."""


def pod_template_of(obj: Object) -> Object:
    """The pod template of such an object: the one of its workers, which is that of its leader, too."""
    spec = obj["spec"]
    template: Object = spec["leaderWorkerTemplate"]["workerTemplate"] if _has_leader(obj) else spec["template"]
    return template


def pods_of(obj: Object) -> int:
    """Pods that such an object is to have."""
    replicas = int(obj["spec"].get("replicas", 1))
    return replicas * int(obj["spec"]["leaderWorkerTemplate"].get("size", 1)) if _has_leader(obj) else replicas


def _has_leader(obj: Object) -> bool:
    return bool(obj["kind"] == LEADER_WORKER_SET)
