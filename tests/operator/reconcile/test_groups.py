"""Engines on several machines: their pods are one replica, which is made, fails, is scaled and replaced as one.

All of it holds whether a StatefulSet or a LeaderWorkerSet makes the pods.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.model import pods as podutil
from blade_operator.model.controllers import CONTROLLERS, LEADER_WORKER_SET, STATEFUL_SET, pod_template_of
from blade_operator.model.objects import Object, Ref
from blade_operator.model.plan import DrainPod
from blade_protocol.check import CheckItem
from blade_protocol.labels import DRAINING_SINCE, MEMBERS, NODES, REVISION, ROLE, ROLE_ENGINE, ROLE_MEMBER

TWO = {"gpus": {"tensorParallel": 2, "nodes": 2}}


@pytest.fixture(autouse=True, params=[STATEFUL_SET, LEADER_WORKER_SET])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Kind of the object of each engine."""
    monkeypatch.setattr(MiniCluster, "has_leader_worker_sets", request.param == LEADER_WORKER_SET)
    return str(request.param)


def make(replicas: int = 1, **spec: Any) -> MiniCluster:
    running = MiniCluster(service({"replicas": replicas, "engine": TWO, **spec}))
    running.converge()
    return running


@pytest.fixture
def cluster(kind: str) -> MiniCluster:
    return make()


def sets(cluster: MiniCluster) -> list[str]:
    """Names of the objects that make pods of groups, without that of the service."""
    kind = LEADER_WORKER_SET if cluster.has_leader_worker_sets else STATEFUL_SET
    other = STATEFUL_SET if cluster.has_leader_worker_sets else LEADER_WORKER_SET
    assert not [ref for ref in cluster.objects if ref.kind == other]
    return sorted(ref.name.removeprefix("qwen-") for ref in cluster.objects if ref.kind == kind)


def numbers(cluster: MiniCluster) -> list[int]:
    return [int(name.rpartition("-")[2]) for name in sets(cluster)]


def members(cluster: MiniCluster) -> list[Object]:
    """Pods of engines that do not terminate."""
    return [pod for pod in cluster.pods if podutil.role(pod) in (ROLE_ENGINE, ROLE_MEMBER) and not leaves(pod)]


def leaves(pod: Object) -> bool:
    return podutil.is_terminating(pod)


def status(cluster: MiniCluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.service["status"]
    return found


def condition(cluster: MiniCluster, kind: str) -> dict[str, Any]:
    return next(each for each in status(cluster)["conditions"] if each["type"] == kind)


def delete(pod: Object) -> None:
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def test_a_group_is_one_replica_and_only_its_leader_is_an_engine_for_routers(cluster: MiniCluster) -> None:
    assert not [ref for ref in cluster.objects if ref.kind == "Deployment" and "-engine-" in ref.name]
    assert numbers(cluster) == [0]
    roles = {pod["metadata"]["name"].rpartition("-")[2]: podutil.role(pod) for pod in members(cluster)}
    assert roles == {"0": ROLE_ENGINE, "1": ROLE_MEMBER}
    assert (status(cluster)["replicas"], status(cluster)["readyReplicas"]) == (1, 1)
    assert condition(cluster, "Ready")["status"] == "True"
    services = cluster.objects[Ref("Service", "team", "qwen-engine")]
    assert services["spec"]["selector"][ROLE] == ROLE_ENGINE


def test_a_group_is_ready_when_every_member_is(kind: str) -> None:
    cluster = MiniCluster(service({"engine": TWO}))
    for _ in range(3):
        cluster.reconcile()
        cluster.run_controllers()
    leader, follower = members(cluster)
    cluster.become_ready(leader)
    cluster.reconcile()
    assert (status(cluster)["replicas"], status(cluster)["readyReplicas"]) == (1, 0)
    message = condition(cluster, "WorkersReady")["message"]
    assert f"1 of 2 machines of engine {leader['owner']} ready" in message
    assert f"{follower['metadata']['name']} is not (machine 1 of 2, rank 1)" in message
    assert MEMBERS not in cluster.objects[Ref(kind, "team", leader["owner"])]["metadata"]["annotations"]
    cluster.become_ready(follower)
    cluster.reconcile()
    assert status(cluster)["readyReplicas"] == 1
    assert MEMBERS in cluster.objects[Ref(kind, "team", leader["owner"])]["metadata"]["annotations"]


def test_members_that_restart_before_the_group_was_whole_are_left_alone() -> None:
    cluster = MiniCluster(service({"engine": TWO}))
    for _ in range(3):
        cluster.reconcile()
        cluster.run_controllers()
    _, follower = members(cluster)
    cluster.terminate_container(follower, "engine", 1, "machine 0 did not answer")
    plan = cluster.reconcile()
    assert plan.delete == []
    [failure] = status(cluster)["failures"]
    assert failure["pod"] == follower["metadata"]["name"]
    assert failure["lastLog"] == "machine 0 did not answer"
    assert "machine 1 of 2, rank 1" in failure["message"]
    cluster.restart(follower)
    cluster.converge()
    assert (numbers(cluster), status(cluster)["readyReplicas"]) == ([0], 1)


def test_memory_that_one_machine_lacks_is_the_engines() -> None:
    cluster = MiniCluster(service({"engine": TWO}))
    for _ in range(3):
        cluster.reconcile()
        cluster.run_controllers()
    leader, follower = members(cluster)
    fits = CheckItem(name="check_memory_fit", status="PASS", detail="float32, machine 0: rank 0: 1 of 4 GiB")
    cluster.check(leader, fits)
    cluster.reconcile()
    assert condition(cluster, "ModelFits")["reason"] == "Estimated"
    lacks = CheckItem(name="check_memory_fit", status="FAILED", detail="float32, machine 1: rank 1: 1 of 0.5 GiB")
    cluster.check(follower, lacks, exit_code=1)
    cluster.reconcile()
    found = condition(cluster, "ModelFits")
    assert (found["status"], found["reason"]) == ("False", "DoesNotFit")
    assert lacks.detail in found["message"]


@pytest.mark.parametrize("lost", [0, 1], ids=["leader", "follower"])
@pytest.mark.parametrize("how", ["restarted", "deleted", "evicted", "gone"])
def test_a_group_that_loses_a_member_is_replaced_whole_and_once(
    cluster: MiniCluster, kind: str, lost: int, how: str
) -> None:
    before = {pod["metadata"]["uid"] for pod in members(cluster)}
    pod = members(cluster)[lost]
    if how == "restarted":
        cluster.terminate_container(pod, "engine", 137, "killed")
    elif how == "deleted":
        delete(pod)
    elif how == "evicted":
        pod["status"]["phase"] = "Failed"
    else:
        cluster.pods.remove(pod)
    name = pod["owner"]
    plan = cluster.reconcile()
    assert [ref.name for ref in plan.delete] == [name]
    [event] = [event for event in plan.events if event.reason == "GroupReplaced"]
    assert how != "restarted" or "ended with exit 137: killed; all pods of the engine are replaced" in event.message
    assert (numbers(cluster), status(cluster)["readyReplicas"]) == ([1], 0)
    cluster.run_controllers()
    if kind == LEADER_WORKER_SET:  # its leader goes first, and takes the others along
        assert all(leaves(each) for each in cluster.of(name) if each["metadata"]["name"] == f"{name}-0")
        cluster.remove_terminating_pods()
        cluster.run_controllers()
    assert all(leaves(each) for each in cluster.of(name))
    cluster.converge()
    assert numbers(cluster) == [1]
    assert not before & {pod["metadata"]["uid"] for pod in members(cluster)}
    assert len([event for event in cluster.events if event.reason == "GroupReplaced"]) == 1
    assert status(cluster)["readyReplicas"] == 1


def test_without_room_for_another_group_a_new_one_waits_for_nothing_but_its_devices() -> None:
    """The number of engines stays what it was while one is replaced, whatever the operator knew before."""
    cluster = make(replicas=2, rollout={"maxSurge": 0, "maxUnavailable": 1})
    cluster.terminate_container(members(cluster)[1], "engine", 1)
    cluster.reconcile()
    cluster.run_controllers()
    assert numbers(cluster) == [1, 2]
    cluster.converge()
    assert (numbers(cluster), status(cluster)["readyReplicas"]) == ([1, 2], 2)


def test_groups_are_scaled_as_a_whole_and_drain_through_their_leaders(cluster: MiniCluster) -> None:
    cluster.edit(replicas=2)
    cluster.converge()
    assert (numbers(cluster), len(members(cluster)), status(cluster)["readyReplicas"]) == ([0, 1], 4, 2)
    first = next(pod for pod in cluster.engine_pods if pod["owner"].endswith("-0"))["metadata"]["name"]
    other = next(pod for pod in cluster.engine_pods if pod["owner"].endswith("-1"))["metadata"]["name"]
    cluster.engines[other] = msgspec.structs.replace(cluster.engines[other], running=3)
    cluster.edit(replicas=1)
    plan = cluster.reconcile()
    [mark] = [obj for obj in plan.apply if obj["kind"] == "Pod"]
    assert mark["metadata"]["name"] == first
    assert mark["metadata"]["labels"] == {ROLE: ROLE_ENGINE}
    assert DRAINING_SINCE in mark["metadata"]["annotations"]
    assert cluster.reconcile().actions == [DrainPod(first)]
    assert numbers(cluster) == [0, 1]
    cluster.reconcile()
    assert numbers(cluster) == [1]
    cluster.converge()
    assert {pod["owner"] for pod in members(cluster)} == {f"qwen-{sets(cluster)[0]}"}
    cluster.edit(replicas=0)
    cluster.converge()
    assert (numbers(cluster), members(cluster), status(cluster)["phase"]) == ([], [], "ScaledToZero")
    cluster.edit(replicas=1)
    cluster.converge()
    assert (numbers(cluster), status(cluster)["readyReplicas"]) == ([0], 1)


def test_a_change_replaces_groups_one_by_one_and_an_engine_answers_at_any_time() -> None:
    cluster = make(replicas=2)
    old = {name.partition("-")[0] for name in sets(cluster)}
    cluster.edit(engine={**TWO, "maxNumSeqs": 4})
    seen = set()
    for _ in range(40):
        cluster.reconcile()
        whole = [pod for pod in cluster.engine_pods if podutil.is_ready(pod)]
        seen.add(len(sets(cluster)))
        assert len({pod["owner"] for pod in whole}) >= 2
        cluster.run_controllers()
        cluster.remove_terminating_pods()
        for pod in cluster.pods:
            cluster.become_ready(pod)
    assert max(seen) == 3
    assert len(sets(cluster)) == 2
    assert not old & {name.partition("-")[0] for name in sets(cluster)}
    assert status(cluster)["updatedReplicas"] == 2


@pytest.mark.parametrize("there", [True, False], ids=["one machine to two", "two machines to one"])
def test_the_number_of_machines_can_change(there: bool, kind: str) -> None:
    one = {"gpus": {"tensorParallel": 2}}
    first, second = (one, TWO) if there else (TWO, one)
    cluster = MiniCluster(service({"engine": first}))
    cluster.converge()
    cluster.edit(engine=second)
    for _ in range(20):
        cluster.reconcile()
        assert any(podutil.is_ready(pod) for pod in cluster.engine_pods)
        cluster.run_controllers()
        cluster.remove_terminating_pods()
        for pod in cluster.pods:
            cluster.become_ready(pod)
    kinds = [ref.kind for ref in cluster.objects if ref.kind in CONTROLLERS and "router" not in ref.name]
    assert kinds == ([kind] if there else ["Deployment"])
    policies = {ref.name for ref in cluster.objects if ref.kind == "NetworkPolicy"}
    assert ("qwen-engine-members" in policies) is there
    assert status(cluster)["readyReplicas"] == 1


def test_a_leader_whose_label_is_taken_away_gets_it_back(cluster: MiniCluster) -> None:
    leader = members(cluster)[0]
    leader["metadata"]["labels"][ROLE] = ROLE_MEMBER
    [mark] = [obj for obj in cluster.reconcile().apply if obj["kind"] == "Pod"]
    assert mark["metadata"]["name"] == leader["metadata"]["name"]
    assert podutil.role(leader) == ROLE_ENGINE


def test_a_group_keeps_its_pods_when_its_stored_template_is_deleted(cluster: MiniCluster) -> None:
    before = {pod["metadata"]["uid"] for pod in members(cluster)}
    for ref in [ref for ref in cluster.objects if ref.kind == "ControllerRevision"]:
        del cluster.objects[ref]
    cluster.converge()
    assert {pod["metadata"]["uid"] for pod in members(cluster)} == before


def test_a_group_stays_in_one_rack_when_its_stored_template_is_deleted(kind: str) -> None:
    cluster = MiniCluster(service({"engine": {"gpus": {**TWO["gpus"], "topologyKey": "rack"}}}))
    cluster.converge()
    [ref] = [ref for ref in cluster.objects if ref.kind == kind]
    before = copy.deepcopy(pod_template_of(cluster.objects[ref]))
    assert before["spec"]["affinity"]["podAffinity"]
    # The current revision's would be rendered again; an older one's only runs on.
    cluster.service["spec"]["engine"]["maxNumSeqs"] = 3
    cluster.reconcile()
    for stored in [each for each in cluster.objects if each.kind == "ControllerRevision"]:
        del cluster.objects[stored]
    for _ in range(3):
        cluster.reconcile()
    assert pod_template_of(cluster.objects[ref]) == before


def test_an_earlier_restart_is_not_why_a_group_is_replaced(cluster: MiniCluster) -> None:
    leader, follower = members(cluster)
    engine = next(each for each in leader["status"]["containerStatuses"] if each["name"] == "engine")
    engine["lastState"] = {"terminated": {"exitCode": 1, "reason": "Error", "message": "machine 1 did not come"}}
    delete(follower)
    [event] = [event for event in cluster.reconcile().events if event.reason == "GroupReplaced"]
    assert event.message.startswith(f"pod {follower['metadata']['name']} (machine 1 of 2) was deleted")


def test_a_set_that_lacks_pods_for_long_is_a_failure(kind: str) -> None:
    cluster = MiniCluster(service({"engine": TWO}))
    for _ in range(40):
        cluster.reconcile()
    [failure] = status(cluster)["failures"]
    [name] = [ref.name for ref in cluster.objects if ref.kind == kind]
    assert failure["message"] == (
        f"0 of 2 pods could be made for {kind} {name}: kubectl describe {kind.lower()} {name} says why"
    )
    assert condition(cluster, "Progressing")["reason"] == "Stalled"


def test_the_template_says_how_many_pods_an_engine_has(cluster: MiniCluster) -> None:
    [template] = [obj["data"]["template"] for ref, obj in cluster.objects.items() if ref.kind == "ControllerRevision"]
    assert template["metadata"]["annotations"][NODES] == "2"
    assert REVISION not in template["metadata"]["labels"]


def test_adapters_are_placed_on_groups_through_their_leaders() -> None:
    """A leader lets its machines read what it is told to load."""
    names = ("sql", "law")
    adapters = [{"name": name, "uri": f"file:///adapters/{name}", "replicas": 1} for name in names]
    cluster = make(2, engine={**TWO, "lora": {"maxGPU": 4}}, adapters=adapters)
    leaders = {pod["metadata"]["name"] for pod in members(cluster) if podutil.role(pod) == ROLE_ENGINE}
    assert len(leaders) == 2
    entries = {each["name"]: each for each in status(cluster)["adapters"]}
    assert {name: (each["desired"], each["loaded"]) for name, each in entries.items()} == dict.fromkeys(names, (1, 1))
    assert {*entries["sql"]["pods"], *entries["law"]["pods"]} == leaders
    assert {pod for pod, listed in cluster.adapters.items() if listed} == leaders
    assert condition(cluster, "AdaptersReady")["status"] == "True"

    lost = next(pod for pod in members(cluster) if podutil.role(pod) == ROLE_MEMBER)
    cluster.terminate_container(lost, "engine", 1, "a bus error")
    cluster.converge()
    entries = {each["name"]: each for each in status(cluster)["adapters"]}
    assert {name: each["loaded"] for name, each in entries.items()} == dict.fromkeys(names, 1)
    assert status(cluster)["readyReplicas"] == 2
