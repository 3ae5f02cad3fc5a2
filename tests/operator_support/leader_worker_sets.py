"""What the controller of LeaderWorkerSets and garbage collection do with their pods, with restart policy ``None``.

The leader belongs to the set, workers belong to the leader's pod: they are deleted once that pod is gone, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object

if TYPE_CHECKING:
    from operator_support.mini_cluster import MiniCluster


def run(cluster: MiniCluster) -> None:
    """Create the pods that sets lack, and delete the workers whose leader is gone."""
    for ref, obj in cluster.objects.items():
        if ref.kind == "LeaderWorkerSet":
            _run(cluster, obj)
    collect(cluster)


def collect(cluster: MiniCluster) -> None:
    """Delete the workers whose leader is gone."""
    uids = {pod["metadata"]["uid"] for pod in cluster.pods}
    for pod in cluster.pods:
        if is_worker(pod) and pod["leader"] not in uids:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def is_worker(pod: Object) -> bool:
    """Whether a leader's pod owns ``pod``."""
    return "leader" in pod


def _run(cluster: MiniCluster, obj: Object) -> None:
    name, spec = obj["metadata"]["name"], obj["spec"]["leaderWorkerTemplate"]
    assert (spec["restartPolicy"], obj["spec"]["replicas"]) == ("None", 1)
    there = {pod["metadata"]["name"]: pod for pod in cluster.of(name)}
    leader = there.get(f"{name}-0")
    if leader is None:
        leader = cluster.make_pod(obj, f"{name}-0")
        cluster.pods.append(leader)
    if podutil.is_terminating(leader):
        return
    workers = [f"{name}-0-{index}" for index in range(1, spec["size"])]
    cluster.pods += [
        cluster.make_pod(obj, worker) | {"leader": leader["metadata"]["uid"]}
        for worker in workers
        if worker not in there
    ]
