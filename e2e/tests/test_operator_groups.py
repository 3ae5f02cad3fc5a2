"""Engines on several machines, as far as the API server, its StatefulSet controller and the scheduler go: fake nodes.

No engine runs: what the machines of one do together is not tested here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blade_protocol.labels import MEMBERS, POD_INDEX, REPLICA_GROUP, ROLE, ROLE_ENGINE, ROLE_MEMBER
from e2e.cluster import Cluster, OwnNode
from e2e.support import leader_worker_sets
from e2e.support.fake_service import fake_nodes, fake_service
from e2e.support.node import own_node
from e2e.support.operator_process import OperatorProcess, make_accounts, no_other_operator
from e2e.support.service import Service, is_ready, names

TWO = {"tensorParallel": 4, "nodes": 2}


@pytest.fixture
def sets(cluster: Cluster) -> Iterator[None]:
    """The cluster has LeaderWorkerSets, before the operator starts."""
    with leader_worker_sets.installed(cluster):
        yield


@pytest.fixture
def alone(cluster: Cluster, crd: None, namespace: str, tmp_path: Path) -> Iterator[OwnNode]:
    """A cluster with fake nodes and an operator with the chart's permissions, without another one."""
    node = own_node(cluster)
    with no_other_operator(node), fake_nodes(node, 3):
        [account] = make_accounts(node, namespace, ["operator"], tmp_path, watching=[namespace])
        with OperatorProcess(node, account, tmp_path / "operator.log", "--namespaces", namespace) as process:
            process.wait_ready()
            yield node
            node.kubectl("delete", "llm", "--all", "-n", namespace)


class Groups(Service):
    """A service whose engines are on two fake nodes each."""

    def put(self, **spec: Any) -> None:
        self.cluster.apply(fake_service(self.namespace, self.name, **spec), namespace=self.namespace)

    def members(self) -> list[dict[str, Any]]:
        """Pods of engines that are not leaving, by name."""
        pods = self.objects("pods", f"{REPLICA_GROUP}")
        return sorted(filter(is_ready, pods), key=lambda pod: str(pod["metadata"]["name"]))

    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.members()}

    def whole(self, groups: int) -> bool:
        status = self.status()
        return (
            (status.get("phase"), status.get("readyReplicas"), status.get("replicas")) == ("Ready", groups, groups)
            and not status["revision"]["updating"]
            and len(self.objects("pods", REPLICA_GROUP)) == 2 * groups
            and len(self.members()) == 2 * groups
        )

    def wait_whole(self, groups: int) -> None:
        self.until(lambda: self.whole(groups), f"with {groups} engines of two pods")

    def endpoints(self) -> set[str]:
        """The pods to which the routers send requests."""
        slices = self.json("get", "endpointslices", "-l", f"kubernetes.io/service-name={self.name}-engine")["items"]
        return {each["targetRef"]["name"] for found in slices for each in found.get("endpoints") or ()}


def test_groups_are_made_replaced_scaled_and_changed_as_one(alone: OwnNode, namespace: str) -> None:
    demo = Groups(alone, namespace)
    demo.put(engine={"gpus": TWO})
    demo.wait_whole(1)
    pods = demo.members()
    assert [pod["metadata"]["labels"][POD_INDEX] for pod in pods] == ["0", "1"]
    assert [pod["metadata"]["labels"][ROLE] for pod in pods] == [ROLE_ENGINE, ROLE_MEMBER]
    demo.until(lambda: demo.endpoints() == {pods[0]["metadata"]["name"]}, "with its leader behind the Service")
    leader = {each["name"]: each.get("value") for each in pods[1]["spec"]["containers"][0]["env"]}["BLADE_LEADER"]
    assert leader == f"{pods[0]['metadata']['name']}.demo-engine-members.{namespace}.svc"
    budget = demo.json("get", "pdb", "demo-engine")
    demo.until(
        lambda: demo.json("get", "pdb", "demo-engine")["status"].get("expectedPods") == 2, "with a budget of two"
    )
    assert budget["spec"]["maxUnavailable"] == 1

    # A member goes: all go, and others come.
    before = demo.uids()
    demo.kubectl("delete", "pod", names(pods)[1], "--wait=false")
    demo.until(lambda: demo.whole(1) and not demo.uids() & before, "with another group")
    events = demo.json("get", "events", "--field-selector", "reason=GroupReplaced")["items"]
    assert [event["message"].endswith("all pods of the engine are replaced") for event in events] == [True]

    before = demo.uids()
    demo.kubectl("scale", "llm", "demo", "--replicas=2")
    demo.wait_whole(2)
    assert before < demo.uids()
    demo.kubectl("scale", "llm", "demo", "--replicas=1")
    demo.wait_whole(1)

    # Another revision, by groups; then one machine for each engine, and back to two.
    before = demo.uids()
    demo.put(engine={"gpus": TWO, "maxNumSeqs": 3}, replicas=1)
    demo.until(lambda: demo.whole(1) and not demo.uids() & before, "with another revision")
    demo.put(engine={"gpus": {"tensorParallel": 4}}, replicas=1)
    demo.until(lambda: not demo.objects("statefulsets,pods", REPLICA_GROUP), "without groups")
    demo.wait_until_converged(1)
    demo.put(engine={"gpus": TWO}, replicas=1)
    demo.wait_whole(1)
    demo.until(lambda: demo.endpoints() == {names(demo.members())[0]}, "with the new leader behind the Service")


def test_machines_of_a_group_share_a_topology_domain(alone: OwnNode, namespace: str) -> None:
    demo = Groups(alone, namespace)
    for number in range(3):
        alone.kubectl("label", "node", f"kwok-{number}", f"e2e/rack={min(number, 1)}", "--overwrite")
    demo.put(engine={"gpus": {**TWO, "topologyKey": "e2e/rack"}}, replicas=2)
    demo.wait_whole(2)
    racks = {"kwok-0": 0, "kwok-1": 1, "kwok-2": 1}
    for group in ("0", "1"):
        pods = [pod for pod in demo.members() if pod["metadata"]["labels"][REPLICA_GROUP] == group]
        assert len({racks[pod["spec"]["nodeName"]] for pod in pods}) == 1


def test_groups_are_leader_worker_sets_where_the_cluster_has_them(sets: None, alone: OwnNode, namespace: str) -> None:
    demo = Groups(alone, namespace)
    with leader_worker_sets.controlled(alone, namespace):
        demo.put(engine={"gpus": TWO})
        demo.wait_whole(1)
        pods = demo.members()
        assert [pod["metadata"]["labels"][POD_INDEX] for pod in pods] == ["0", "1"]
        assert [pod["metadata"]["labels"][ROLE] for pod in pods] == [ROLE_ENGINE, ROLE_MEMBER]
        [found] = demo.objects("leaderworkersets")
        name = found["metadata"]["name"]
        assert names(pods) == [f"{name}-0", f"{name}-0-1"]
        leader = {each["name"]: each.get("value") for each in pods[1]["spec"]["containers"][0]["env"]}["BLADE_LEADER"]
        assert leader == f"{name}-0.{name}.{namespace}.svc"
        demo.until(lambda: demo.endpoints() == {f"{name}-0"}, "with its leader behind the Service")
        demo.until(
            lambda: MEMBERS in demo.json("get", "leaderworkersets", name)["metadata"]["annotations"], "marked as whole"
        )
        assert demo.json("get", "leaderworkersets", name)["metadata"]["generation"] == 1
        demo.until(
            lambda: demo.json("get", "pdb", "demo-engine")["status"].get("expectedPods") == 2, "with a budget of two"
        )

        # A member goes: all go, and others come.
        before = demo.uids()
        demo.kubectl("delete", "pod", f"{name}-0-1", "--wait=false")
        demo.until(lambda: demo.whole(1) and not demo.uids() & before, "with another group")
        assert names(demo.objects("leaderworkersets")) != [name]

        before = demo.uids()
        demo.kubectl("scale", "llm", "demo", "--replicas=2")
        demo.wait_whole(2)
        assert before < demo.uids()
        demo.put(engine={"gpus": TWO, "maxNumSeqs": 3}, replicas=1)
        demo.until(lambda: demo.whole(1) and not demo.uids() & before, "with another revision")
        demo.put(engine={"gpus": {"tensorParallel": 4}}, replicas=1)
        demo.until(
            lambda: not demo.objects("leaderworkersets") and not demo.objects("pods", REPLICA_GROUP), "without groups"
        )
