"""Engines that require the internal token wait for routers that send it: no request is refused in an upgrade."""

from __future__ import annotations

from operator_support.mini_cluster import MiniCluster, service

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.model.pods import ENGINE
from blade_operator.render import Defaults
from blade_protocol import environment
from blade_protocol.labels import SENDS_TOKEN

WITH_KEY = Defaults(engine_image="engine:1", router_image="operator:1", internal_key=b"k" * 32)


def requires_token(pod: Object) -> bool:
    [engine] = [container for container in pod["spec"]["containers"] if container["name"] == ENGINE]
    return {"name": environment.PUBLIC_TOKEN, "value": "1"} in engine["env"]


def routers(cluster: MiniCluster) -> list[Object]:
    return [pod for pod in cluster.pods if podutil.role(pod) == "router"]


def old_routers(cluster: MiniCluster) -> None:
    """The routers are those of an earlier release."""
    for pod in routers(cluster):
        pod["metadata"]["labels"].pop(SENDS_TOKEN, None)


def engines(cluster: MiniCluster) -> list[bool]:
    return [requires_token(pod) for pod in cluster.engine_pods if not podutil.is_terminating(pod)]


def upgraded() -> MiniCluster:
    """Engines of a release without the token on their public port, and the operator of this one."""
    cluster = MiniCluster(service({"replicas": 2, "security": {"engineToken": False}}), WITH_KEY)
    cluster.converge()
    assert engines(cluster) == [False, False]
    old_routers(cluster)
    cluster.edit(security={"engineToken": True})
    return cluster


def test_a_first_install_requires_the_token_at_once() -> None:
    cluster = MiniCluster(service({"replicas": 2}), WITH_KEY)
    cluster.converge()
    assert engines(cluster) == [True, True]
    assert all(SENDS_TOKEN in pod["metadata"]["labels"] for pod in routers(cluster))


def test_new_engines_wait_until_every_router_sends_the_token() -> None:
    cluster = upgraded()
    cluster.converge()
    assert engines(cluster) == [False, False], "an old router would be refused"
    for pod in routers(cluster):
        pod["metadata"]["labels"][SENDS_TOKEN] = "true"  # it was replaced
    cluster.converge()
    assert engines(cluster) == [True, True]


def test_what_engines_wait_for_is_said_and_those_of_before_are_scaled_meanwhile() -> None:
    cluster = upgraded()
    cluster.edit(replicas=4)
    for _ in range(6):
        cluster.reconcile()
        cluster.run_controllers()
        cluster.remove_terminating_pods()
        for pod in cluster.engine_pods:
            cluster.become_ready(pod)
        old_routers(cluster)
    assert engines(cluster) == [False] * 4
    conditions = {entry["type"]: entry for entry in cluster.service["status"]["conditions"]}
    for kind in ("Progressing", "Reconciling"):
        assert (conditions[kind]["status"], conditions[kind]["reason"]) == ("True", "WaitingForRouters")
    assert "wait until every router sends it: 1 of 1 routers are of before" in conditions["Progressing"]["message"]
    cluster.edit(replicas=0)
    for _ in range(8):
        cluster.reconcile()
        cluster.run_controllers()
        cluster.remove_terminating_pods()
        old_routers(cluster)
    assert engines(cluster) == []
    cluster.edit(replicas=1)
    cluster.reconcile()
    cluster.run_controllers()
    assert engines(cluster) == [], "an old router would be refused"
    reasons = {entry["type"]: entry["reason"] for entry in cluster.service["status"]["conditions"]}
    assert reasons["Progressing"] == "WaitingForRouters"
    for pod in routers(cluster):
        pod["metadata"]["labels"][SENDS_TOKEN] = "true"
    cluster.converge()
    assert engines(cluster) == [True]


def test_an_old_router_that_terminates_or_has_ended_keeps_nobody_waiting() -> None:
    cluster = upgraded()
    [old] = routers(cluster)
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.converge()
    assert engines(cluster) == [True, True]


def test_engines_that_run_already_are_scaled_whatever_the_routers_are() -> None:
    cluster = MiniCluster(service({"replicas": 1}), WITH_KEY)
    cluster.converge()
    old_routers(cluster)
    cluster.edit(replicas=3)
    cluster.converge()
    assert engines(cluster) == [True] * 3


def test_without_the_token_nobody_waits() -> None:
    cluster = MiniCluster(service({"replicas": 1, "security": {"engineToken": False}}), WITH_KEY)
    cluster.converge()
    old_routers(cluster)
    cluster.edit(engine={"dtype": "bfloat16"})
    cluster.converge()
    assert engines(cluster) == [False]
    assert len(cluster.service["status"]["revision"]["previous"]) == 8, "there was a rollout"
