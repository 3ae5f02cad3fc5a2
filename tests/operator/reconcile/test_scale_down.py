"""Scaling down: engines leave the routers first, those with the fewest requests, and may come back."""

from __future__ import annotations

import random
from datetime import timedelta

import msgspec
import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Ref
from blade_operator.model.plan import DrainPod
from blade_operator.reconcile.scale_down import DRAIN_REPORT_TIMEOUT, DRAIN_REQUEUE, MAX_DRAIN_REQUEUE
from blade_protocol.labels import DELETION_COST, DRAINING_SINCE


@pytest.fixture
def cluster() -> MiniCluster:
    running = MiniCluster(service({"replicas": 3}))
    running.converge()
    return running


def replicas(cluster: MiniCluster) -> list[int]:
    return [
        obj["spec"]["replicas"]
        for ref, obj in cluster.objects.items()
        if ref.kind == "Deployment" and "-engine-" in ref.name
    ]


def load(cluster: MiniCluster, *running: int) -> list[str]:
    """Give each engine that many requests; their names, fewest first."""
    names = [pod["metadata"]["name"] for pod in cluster.engine_pods]
    for name, count in zip(names, running, strict=True):
        cluster.engines[name] = msgspec.structs.replace(cluster.engines[name], running=count)
    return sorted(names, key=lambda name: cluster.engines[name].running)


def marked(cluster: MiniCluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.engine_pods if podutil.draining_since(pod)]


def test_the_engine_with_the_fewest_requests_is_marked_drained_and_only_then_deleted(cluster: MiniCluster) -> None:
    idle, *busy = load(cluster, 7, 1, 4)
    cluster.edit(replicas=2)
    plan = cluster.reconcile()
    [mark] = [obj for obj in plan.apply if obj["kind"] == "Pod"]
    assert (mark["metadata"]["name"], plan.actions, replicas(cluster)) == (idle, [], [3])
    assert set(mark) == {"apiVersion", "kind", "metadata"}
    assert mark["metadata"]["annotations"].keys() == {DELETION_COST, DRAINING_SINCE}
    plan = cluster.reconcile()
    assert (plan.actions, plan.requeue_after, replicas(cluster)) == ([DrainPod(idle)], DRAIN_REQUEUE, [3])
    plan = cluster.reconcile()
    assert (plan.actions, replicas(cluster)) == ([], [2])
    assert [event.message.partition(" ")[0] for event in plan.events if event.reason == "ScaledDown"] == ["scaled"]
    cluster.run_controllers()
    cluster.remove_terminating_pods()
    assert sorted(pod["metadata"]["name"] for pod in cluster.engine_pods) == sorted(busy)
    assert marked(cluster) == []


def test_an_engine_that_stays_after_all_takes_requests_again_before_its_mark_goes(cluster: MiniCluster) -> None:
    idle, *_ = load(cluster, 7, 1, 4)
    cluster.edit(replicas=2)
    cluster.reconcile()
    cluster.reconcile()
    assert cluster.engines[idle].draining
    cluster.edit(replicas=3)
    plan = cluster.reconcile()
    assert (plan.actions, marked(cluster)) == ([DrainPod(idle, draining=False)], [idle])
    cluster.reconcile()
    assert (marked(cluster), cluster.engines[idle].draining) == ([], False)
    cluster.converge()
    assert replicas(cluster) == [3]


@pytest.mark.parametrize("silent", [True, False], ids=["does not respond", "stays drained"])
def test_an_engine_that_cannot_be_taken_back_is_asked_ever_more_seldom(cluster: MiniCluster, silent: bool) -> None:
    idle, *_ = load(cluster, 7, 1, 4)
    cluster.edit(replicas=2)
    cluster.reconcile()
    cluster.reconcile()
    state = cluster.engines[idle]
    assert state.draining
    cluster.edit(replicas=3)
    cluster.deaf.add(idle)
    if silent:
        del cluster.engines[idle]
    waits = []
    for _ in range(6):
        cluster.now += timedelta(seconds=30)
        plan = cluster.reconcile()
        assert (plan.actions, marked(cluster)) == ([DrainPod(idle, draining=False)], [idle])
        waits.append(plan.requeue_after or 0.0)
    assert waits == sorted(waits)
    assert waits[-1] == MAX_DRAIN_REQUEUE
    assert not silent or set(waits) == {MAX_DRAIN_REQUEUE}
    cluster.deaf.clear()
    cluster.engines[idle] = state
    cluster.reconcile()  # it responds: it is told,
    cluster.reconcile()
    assert (marked(cluster), cluster.engines[idle].draining) == ([], False)


def test_a_restarted_operator_goes_on_with_the_engine_that_was_marked(cluster: MiniCluster) -> None:
    first, second, _ = load(cluster, 1, 2, 9)
    cluster.edit(replicas=2)
    cluster.reconcile()
    cluster.engines[first] = msgspec.structs.replace(cluster.engines[first], running=50)
    assert [cluster.reconcile().actions, marked(cluster)] == [[DrainPod(first)], [first]]
    cluster.edit(replicas=1)
    cluster.reconcile()
    assert sorted(marked(cluster)) == sorted([first, second])


def test_an_engine_that_does_not_respond_or_does_not_drain_holds_nothing_up_for_long(cluster: MiniCluster) -> None:
    silent, deaf, _ = load(cluster, 1, 2, 9)
    del cluster.engines[silent]
    cluster.deaf.add(deaf)
    cluster.edit(replicas=2)
    cluster.reconcile()
    assert (marked(cluster), cluster.reconcile().actions, replicas(cluster)) == ([silent], [], [2])
    cluster.converge()
    cluster.edit(replicas=1)
    for _ in range(int(DRAIN_REPORT_TIMEOUT)):
        cluster.reconcile()
    assert (marked(cluster), replicas(cluster)) == ([deaf], [2])
    for _ in range(3):
        cluster.reconcile()
    assert replicas(cluster) == [1]


def test_engines_that_are_not_ready_go_first_and_need_no_mark(cluster: MiniCluster) -> None:
    pod = cluster.engine_pods[2]
    cluster.terminate_container(pod, "engine", 1)
    cluster.edit(replicas=2)
    cluster.reconcile()
    assert (marked(cluster), replicas(cluster)) == ([], [2])


def test_where_pods_may_not_be_annotated_the_service_is_scaled_all_the_same(cluster: MiniCluster) -> None:
    idle, *_ = load(cluster, 7, 1, 4)
    cluster.rejected = {Ref("Pod", "team", idle): "pods is forbidden"}
    cluster.edit(replicas=2)
    assert replicas(cluster) == [3]
    cluster.reconcile()
    assert replicas(cluster) == [2]


def test_an_update_takes_each_old_engine_off_the_routers_before_it_goes(cluster: MiniCluster) -> None:
    old = {pod["metadata"]["name"] for pod in cluster.engine_pods}
    cluster.edit(engine={"maxNumSeqs": 8})
    drained = follow(cluster, 40)
    assert drained == old
    assert replicas(cluster) == [3]


def follow(cluster: MiniCluster, rounds: int) -> set[str]:
    """Reconcile and let the controllers act, in turn: no ready engine may be deleted before it drains."""
    drained: set[str] = set()
    for _ in range(rounds):
        cluster.reconcile()
        ready = {pod["metadata"]["name"] for pod in cluster.engine_pods if podutil.is_ready(pod)}
        cluster.run_controllers()
        deleted = [pod["metadata"]["name"] for pod in cluster.engine_pods if podutil.is_terminating(pod)]
        assert all(cluster.engines[name].draining for name in deleted if name in ready and name in cluster.engines)
        drained |= {*deleted}
        cluster.remove_terminating_pods()
        for pod in cluster.pods:
            cluster.become_ready(pod)
    return drained


@pytest.mark.parametrize("seed", range(12))
def test_in_any_order_of_changes_no_engine_is_deleted_that_still_gets_requests(seed: int) -> None:
    chance = random.Random(seed)
    cluster = MiniCluster(service({"replicas": 2, "rollout": {"maxSurge": chance.randint(0, 2), "maxUnavailable": 1}}))
    cluster.converge()
    for _ in range(12):
        match chance.choice(["scale", "scale", "edit", "load"]):
            case "scale":
                cluster.edit(replicas=chance.randint(0, 4))
            case "edit":
                cluster.edit(engine={"maxNumSeqs": chance.randint(1, 3)})
            case "load":
                load(cluster, *(chance.randint(0, 9) for _ in cluster.engine_pods))
        follow(cluster, chance.randint(1, 4))
    cluster.converge(60)
    assert marked(cluster) == []
    assert not any(state.draining for state in states(cluster))
    assert len(cluster.engine_pods) == cluster.service["spec"]["replicas"]


def states(cluster: MiniCluster) -> list[msgspec.Struct]:
    return [cluster.engines[pod["metadata"]["name"]] for pod in cluster.engine_pods]
