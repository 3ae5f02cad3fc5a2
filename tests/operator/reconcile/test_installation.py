"""Two installations of the operator on one service: one owns it, the other says so once and writes nothing else."""

from __future__ import annotations

import copy
import dataclasses
from datetime import timedelta

import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.model.plan import Plan
from blade_operator.reconcile.installation import CONTESTED_SECONDS, belongs_elsewhere
from blade_operator.render import Defaults
from blade_protocol.labels import INSTALLATION

FIRST = Defaults(engine_image="engine:1", router_image="operator:1", installation="one/bladellm")
SECOND = Defaults(engine_image="engine:2", router_image="operator:2", installation="two/bladellm")


@pytest.fixture
def cluster() -> MiniCluster:
    running = MiniCluster(service({"replicas": 2}), FIRST)
    running.converge()
    return running


def turn(cluster: MiniCluster, defaults: Defaults) -> Plan:
    """One reconcile of that installation."""
    cluster.defaults = defaults
    return cluster.reconcile()


def conditions(cluster: MiniCluster) -> dict[str, str]:
    return {entry["type"]: entry["message"] for entry in cluster.service["status"]["conditions"]}


def test_the_first_claims_the_service_before_it_writes_anything() -> None:
    cluster = MiniCluster(service(), FIRST)
    plan = cluster.reconcile()
    assert plan.claim == {"installation": "one/bladellm"}
    assert cluster.service["status"]["installation"] == "one/bladellm"
    assert cluster.plan().claim is None


def test_the_other_refuses_with_one_condition_and_neither_writes_again(cluster: MiniCluster) -> None:
    objects = copy.deepcopy(cluster.objects)
    refused = turn(cluster, SECOND)
    assert refused == Plan(claim=refused.claim)
    assert conditions(cluster)["Contested"] == (
        "installation two/bladellm watches this service, too, and leaves it alone: it belongs to one/bladellm; to hand "
        "it over, annotate it with serving.bladellm.io/installation=two/bladellm"
    )
    for _ in range(20):
        for defaults in (FIRST, SECOND):
            assert turn(cluster, defaults) == Plan()
    assert cluster.objects == objects


def test_the_owner_goes_on_as_before_and_keeps_the_condition_for_a_while(cluster: MiniCluster) -> None:
    turn(cluster, SECOND)
    cluster.defaults = FIRST
    cluster.edit(replicas=1)
    cluster.converge()
    assert len(cluster.engine_pods) == 1
    assert "Contested" in conditions(cluster)
    cluster.now += timedelta(seconds=CONTESTED_SECONDS)
    turn(cluster, FIRST)
    assert "Contested" not in conditions(cluster)
    assert turn(cluster, FIRST) == Plan()
    assert turn(cluster, SECOND).claim is not None


def test_the_user_hands_a_service_over(cluster: MiniCluster) -> None:
    turn(cluster, SECOND)
    cluster.service["metadata"]["annotations"] = {INSTALLATION: "two/bladellm"}
    assert turn(cluster, FIRST).apply == []
    plan = turn(cluster, SECOND)
    assert plan.claim is not None
    assert [obj["metadata"]["name"] for obj in plan.apply] == ["qwen-router"]  # its own release
    assert cluster.service["status"]["installation"] == "two/bladellm"
    turn(cluster, FIRST)
    assert "it belongs to two/bladellm" in conditions(cluster)["Contested"]
    for _ in range(3):
        assert (turn(cluster, FIRST), turn(cluster, SECOND).apply) == (Plan(), [])


def test_a_service_whose_installation_is_gone_is_taken_over(cluster: MiniCluster) -> None:
    turn(cluster, SECOND)
    cluster.abandoned = True
    turn(cluster, SECOND)
    assert cluster.service["status"]["installation"] == "two/bladellm"
    assert "Contested" not in conditions(cluster)  # it said so itself, before
    cluster.abandoned = False
    assert turn(cluster, FIRST).apply == []  # back from a long absence
    assert "installation one/bladellm watches" in conditions(cluster)["Contested"]


def test_a_service_belongs_elsewhere_until_it_is_assigned_abandoned_or_there_is_no_other(cluster: MiniCluster) -> None:
    assert not belongs_elsewhere(cluster.observed(), "one/bladellm")
    assert not belongs_elsewhere(cluster.observed(), "")
    assert belongs_elsewhere(cluster.observed(), "two/bladellm")
    cluster.abandoned = True
    assert not belongs_elsewhere(cluster.observed(), "two/bladellm")
    cluster.service["metadata"]["annotations"] = {INSTALLATION: "two/bladellm"}
    assert belongs_elsewhere(cluster.observed(), "one/bladellm")


def test_an_invalid_service_is_claimed_too_and_without_a_name_there_is_no_other_installation() -> None:
    cluster = MiniCluster(service({"replicas": -1}), FIRST)
    assert cluster.reconcile().claim is not None
    assert cluster.service["status"]["installation"] == "one/bladellm"
    assert turn(cluster, SECOND).apply == []
    local = MiniCluster(service(), dataclasses.replace(FIRST, installation=""))
    assert local.reconcile().claim is None
    assert "installation" not in local.service["status"]
