"""Whether a StatefulSet or a LeaderWorkerSet is made for an engine on several machines, and the change from one to the
other."""

from __future__ import annotations

from typing import Any

import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.model import pods as podutil
from blade_operator.model.controllers import LEADER_WORKER_SET, STATEFUL_SET
from blade_operator.model.objects import Object, Ref
from blade_operator.render import Defaults
from blade_protocol.labels import MEMBERS, REPLICA_GROUP

TWO = {"gpus": {"tensorParallel": 2, "nodes": 2}}
QUEUE = "kueue.x-k8s.io/queue-name"
EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"


def make(there: bool, kind: str = "auto", replicas: int = 1, **metadata: Any) -> MiniCluster:
    """``there``: the cluster has LeaderWorkerSets; ``kind``: what the operator is told to make."""
    defaults = Defaults(engine_image="engine:1", router_image="operator:1", group_kind=kind)
    cluster = MiniCluster(service({"replicas": replicas, "engine": TWO}, **metadata), defaults)
    cluster.has_leader_worker_sets = there
    return cluster


def groups(cluster: MiniCluster) -> list[tuple[str, int]]:
    """Kind and number of each group's object."""
    found = [ref for ref in cluster.objects if ref.kind in (STATEFUL_SET, LEADER_WORKER_SET)]
    return sorted((ref.kind, int(ref.name.rpartition("-")[2])) for ref in found)


def uids(cluster: MiniCluster) -> set[str]:
    return {pod["metadata"]["uid"] for pod in cluster.pods if REPLICA_GROUP in pod["metadata"]["labels"]}


def only_set(cluster: MiniCluster) -> Object:
    [obj] = [obj for ref, obj in cluster.objects.items() if ref.kind == LEADER_WORKER_SET]
    return obj


@pytest.mark.parametrize(
    ("kind", "there", "made"),
    [
        ("auto", True, LEADER_WORKER_SET),
        ("auto", False, STATEFUL_SET),
        (STATEFUL_SET, True, STATEFUL_SET),
        (LEADER_WORKER_SET, True, LEADER_WORKER_SET),
    ],
)
def test_the_kind_is_the_one_asked_for_or_what_the_cluster_has(kind: str, there: bool, made: str) -> None:
    cluster = make(there, kind)
    cluster.converge()
    assert groups(cluster) == [(made, 0)]
    assert cluster.service["status"]["readyReplicas"] == 1


def test_a_kind_that_the_cluster_lacks_is_a_failure_that_says_so() -> None:
    cluster = make(there=False, kind=LEADER_WORKER_SET)
    [obj] = [obj for obj in cluster.plan().apply if obj["kind"] == LEADER_WORKER_SET]
    cluster.rejected = {Ref.of(obj): "the cluster has no leaderworkersets.leaderworkerset.x-k8s.io: install it"}
    cluster.reconcile()
    [failure] = cluster.service["status"]["failures"]
    assert failure["reason"] == "ApplyRejected"
    assert f"the cluster refuses LeaderWorkerSet {obj['metadata']['name']}: the cluster has no" in failure["message"]


@pytest.mark.parametrize("later", [True, False], ids=["it is installed", "it is not used any more"])
def test_groups_keep_their_kind_until_they_are_replaced(later: bool) -> None:
    cluster = make(there=not later, replicas=2)
    cluster.converge()
    old, new = (STATEFUL_SET, LEADER_WORKER_SET) if later else (LEADER_WORKER_SET, STATEFUL_SET)
    before, revision = uids(cluster), cluster.service["status"]["revision"]["current"]
    cluster.has_leader_worker_sets = True
    cluster.defaults = Defaults(engine_image="engine:1", router_image="operator:1", group_kind=new)
    cluster.converge()
    assert (groups(cluster), uids(cluster)) == ([(old, 0), (old, 1)], before)

    cluster.edit(replicas=3)
    cluster.converge()
    assert groups(cluster) == sorted([(old, 0), (old, 1), (new, 2)])
    assert before < uids(cluster)

    lost = next(pod for pod in cluster.engine_pods if pod["owner"].endswith("-0"))
    cluster.terminate_container(lost, "engine", 1)
    cluster.converge()
    assert groups(cluster) == sorted([(old, 1), (new, 2), (new, 3)])

    # All of them are engines of one revision; which one leaves does not depend on the kind.
    assert cluster.service["status"]["revision"]["current"] == revision
    assert cluster.service["status"]["readyReplicas"] == 3
    cluster.edit(engine={**TWO, "maxNumSeqs": 4})
    cluster.converge(60)
    assert {kind for kind, _ in groups(cluster)} == {new}
    assert cluster.service["status"]["readyReplicas"] == 3


def test_a_set_that_is_there_is_written_once_more_when_it_is_whole_and_then_never() -> None:
    cluster = make(there=True, labels={QUEUE: "inference"}, annotations={EXCLUSIVE: "rack"})
    for _ in range(3):
        cluster.reconcile()
        cluster.run_controllers()
    obj = only_set(cluster)
    assert (obj["metadata"]["labels"][QUEUE], obj["metadata"]["annotations"][EXCLUSIVE]) == ("inference", "rack")
    # Its queue is that of the service when it was made: Kueue lets it not be changed, nor would pods move.
    cluster.service["metadata"] |= {"labels": {QUEUE: "batch"}, "annotations": {EXCLUSIVE: "zone"}}
    assert not [each for each in cluster.reconcile().apply if each["kind"] == LEADER_WORKER_SET]
    for pod in cluster.pods:
        cluster.become_ready(pod)
    [marked] = [each for each in cluster.reconcile().apply if each["kind"] == LEADER_WORKER_SET]
    assert (marked["metadata"]["labels"][QUEUE], marked["metadata"]["annotations"][EXCLUSIVE]) == ("inference", "rack")
    assert marked["metadata"]["annotations"][MEMBERS]
    assert marked["spec"] == obj["spec"]
    cluster.converge()
    assert not cluster.reconcile().apply
    cluster.edit(replicas=2)
    cluster.converge()
    queues = [obj["metadata"]["labels"][QUEUE] for ref, obj in cluster.objects.items() if ref.kind == LEADER_WORKER_SET]
    assert queues == ["inference", "batch"]


def test_a_set_of_an_earlier_service_is_none_of_its_groups() -> None:
    cluster = make(there=True)
    cluster.converge()
    obj = only_set(cluster)
    obj["metadata"]["ownerReferences"][0]["uid"] = "earlier"
    plan = cluster.reconcile()
    assert not [ref for ref in plan.delete if ref.kind == LEADER_WORKER_SET]
    assert (LEADER_WORKER_SET, 1) in groups(cluster)


def test_followers_that_outlive_their_leader_belong_to_a_group_that_leaves() -> None:
    """Garbage collection deletes workers once the leader's pod is gone; until then their number is taken."""
    cluster = make(there=True)
    cluster.converge()
    cluster.edit(replicas=0)
    for _ in range(6):
        cluster.reconcile()
    assert groups(cluster) == []
    cluster.run_controllers()
    leader, follower = [pod for pod in cluster.pods if REPLICA_GROUP in pod["metadata"]["labels"]]
    assert podutil.is_terminating(leader)
    assert not podutil.is_terminating(follower)
    cluster.remove_terminating_pods()
    cluster.edit(replicas=1)
    cluster.reconcile()
    assert groups(cluster) == [(LEADER_WORKER_SET, 1)]
    cluster.converge()
    assert cluster.service["status"]["readyReplicas"] == 1


def test_a_group_in_a_queue_says_so_and_is_not_stuck() -> None:
    """Kueue holds the pods of a set back with a scheduling gate until there is room for all of them."""
    cluster = make(there=True, labels={QUEUE: "inference"})
    for _ in range(3):
        cluster.reconcile()
        cluster.run_controllers()
    said = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked"}
    for pod in cluster.pods:
        if REPLICA_GROUP in pod["metadata"]["labels"]:
            pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
            pod["status"]["conditions"].append(said)
    for _ in range(100):
        cluster.reconcile()
    failures = cluster.service["status"]["failures"]
    assert [failure["reason"] for failure in failures] == ["SchedulingGated", "SchedulingGated"]
    assert "waits in a queue" in failures[0]["message"]
    assert "kueue.x-k8s.io/admission" in failures[0]["message"]
    conditions = {each["type"]: each for each in cluster.service["status"]["conditions"]}
    assert conditions["Progressing"]["status"] == "True"
    assert "waits in a queue" in conditions["WorkersReady"]["message"]
    for pod in cluster.pods:
        pod["spec"].pop("schedulingGates", None)
        pod["status"]["conditions"] = [each for each in pod["status"]["conditions"] if each is not said]
    cluster.converge()
    assert cluster.service["status"]["readyReplicas"] == 1
