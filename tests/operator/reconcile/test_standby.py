"""The warm pool: engines that stand by, are woken when more are to serve, and come back when fewer are."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from operator_support.mini_cluster import service
from operator_support.pooled import POOLED, Pooled
from operator_support.sleepy import SLEEPY

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Ref
from blade_operator.model.plan import DrainPod
from blade_operator.reconcile.standby import WAKE_SECONDS
from blade_operator.spec import SpecError, parse_service
from blade_protocol.labels import DELETION_COST, STANDBY_SINCE, WOKEN_AT

ASLEEP: dict[str, Any] = SLEEPY | {"standby": 1}


def pods(cluster: Pooled) -> dict[str, dict[str, Any]]:
    return {pod["metadata"]["name"]: pod for pod in cluster.engine_pods}


def test_the_pool_is_filled_beyond_those_that_serve_and_the_status_counts_it() -> None:
    cluster = Pooled()
    assert cluster.state == (1, 1, 2)
    [spare], [serving] = cluster.standing_by, cluster.serving
    assert cluster.scaling["standby"] == 1
    assert (cluster.scaling["replicas"], cluster.service["status"]["desiredReplicas"]) == (1, 1)
    assert cluster.service["status"]["readyReplicas"] == 1
    annotations = pods(cluster)[spare]["metadata"]["annotations"]
    assert annotations.keys() == {STANDBY_SINCE, DELETION_COST}
    assert not pods(cluster)[serving]["metadata"].get("annotations")
    assert cluster.messages("Standby") == [f"{spare} stands by"]
    cluster.settle()
    assert cluster.phase == "Ready"
    assert cluster.condition("Progressing")[:2] == ("False", "Complete")
    plan = cluster.plan()
    assert [*plan.apply, *plan.actions, *plan.events] == [], "that is all"
    assert plan.status is None


def test_the_mark_is_made_before_the_engine_is_drained() -> None:
    cluster = Pooled(POOLED | {"standby": 0})
    cluster.edit(scaling=POOLED)
    cluster.reconcile()
    cluster.run_controllers()
    for pod in cluster.engine_pods:
        cluster.become_ready(pod)
    while not (plan := cluster.plan()).actions:
        cluster.reconcile()
        assert not any(state.draining for state in cluster.engines.values())
    [action] = plan.actions
    assert action == DrainPod(action.pod, standby=True)
    assert podutil.stands_by(pods(cluster)[action.pod])


def test_scaling_up_wakes_the_engine_at_once_and_refills_the_pool() -> None:
    cluster = Pooled()
    [spare], [first] = cluster.standing_by, cluster.serving
    cluster.bound(2)
    plan = cluster.reconcile()
    while not plan.actions:
        plan = cluster.reconcile()
    assert plan.actions == [DrainPod(spare, draining=False)]
    assert plan.requeue_after is not None
    assert plan.requeue_after < 0.5
    assert cluster.replicas == 3, "the pool is refilled at the same time"
    assert len(cluster.messages("StandbyWoken")) == 1
    cluster.settle()
    assert cluster.state == (2, 1, 3)
    assert cluster.serving == sorted([first, spare])
    assert pods(cluster)[spare]["metadata"]["annotations"].keys() == {WOKEN_AT}
    assert len(cluster.messages("StandbyWoken")) == 1


def test_scaling_down_keeps_the_emptiest_engine_warm_and_deletes_one_that_stood_by() -> None:
    cluster = Pooled()
    cluster.decide(3)
    [old] = cluster.standing_by
    busy, cached, idle = cluster.serving
    cluster.use(busy, running=3)
    cluster.use(cached, cached=9000)
    cluster.use(idle, cached=100)
    cluster.fewest_serving = 99
    cluster.decide(2)
    assert (cluster.state, cluster.standing_by) == ((2, 1, 3), [idle])
    assert cluster.serving == sorted([busy, cached])
    assert old not in pods(cluster)
    assert cluster.fewest_serving == 2


@pytest.mark.parametrize(("most", "pool"), [(2, 0), (3, 1), (4, 2), (9, 2)])
def test_the_budget_of_gpus_is_first_of_those_that_serve(most: int, pool: int) -> None:
    scaling = POOLED | {"standby": 2, "min": 2, "max": 8, "maxGPUs": most}
    cluster = Pooled(scaling, engine={"gpus": {"count": 1}})
    assert cluster.state == (2, pool, 2 + pool)
    cluster.edit(scaling=scaling | {"min": 3})
    cluster.settle()
    serving = 3
    assert cluster.state == (serving, max(0, min(2, most - serving)), max(serving, min(most, 5)))


def test_the_number_of_those_that_stand_by_follows_the_spec() -> None:
    cluster = Pooled()
    cluster.edit(scaling=POOLED | {"standby": 3})
    cluster.settle()
    assert cluster.state == (1, 3, 4)
    [serving] = cluster.serving
    cluster.edit(scaling=POOLED | {"standby": 1})
    cluster.settle()
    assert (cluster.state, cluster.serving) == ((1, 1, 2), [serving])
    cluster.edit(scaling=POOLED | {"standby": 0})
    cluster.settle()
    assert (cluster.state, cluster.serving) == ((1, 0, 1), [serving])
    assert "standby" not in cluster.scaling


@pytest.mark.parametrize("scaling", [{"mode": "Fixed"}, {"mode": "External"}, None])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_in_another_mode_nobody_stands_by(scaling: dict[str, Any] | None, replicas: int) -> None:
    cluster = Pooled()
    [serving], [spare] = cluster.serving, cluster.standing_by
    cluster.edit(scaling=scaling, replicas=replicas)
    cluster.settle()
    assert cluster.state == (replicas, 0, replicas)
    assert serving in cluster.serving
    assert (spare in cluster.serving) == (replicas > 1), "it is woken where one more is to serve"
    assert not any(podutil.standby_since(pod) for pod in cluster.engine_pods)


def test_at_zero_the_pool_remains_and_a_held_request_wakes_an_engine_of_it() -> None:
    cluster = Pooled(ASLEEP)
    cluster.rest()
    cluster.step()
    cluster.settle()
    assert cluster.state == (0, 1, 1)
    assert (cluster.phase, cluster.scaling["standby"]) == ("Sleeping", 1)
    assert cluster.condition("Ready")[2].endswith("the next one wakes it (1 on standby)")
    [spare] = cluster.standing_by
    assert cluster.plan().wakes_on_demand
    cluster.demand()
    made = len(cluster.engine_pods)
    cluster.reconcile()
    plan = cluster.reconcile()
    assert plan.actions == [DrainPod(spare, draining=False)]
    assert not cluster.engines[spare].draining, "it answers before any pod is made"
    assert len(cluster.engine_pods) == made
    cluster.settle()
    assert (cluster.state, cluster.serving) == ((1, 1, 2), [spare])
    cluster.rest()
    cluster.step()
    cluster.settle()
    assert cluster.state == (0, 1, 1)


def test_a_request_that_comes_while_the_engine_goes_to_standby_wakes_it() -> None:
    cluster = Pooled(ASLEEP)
    cluster.rest()
    cluster.now += timedelta(seconds=60)
    for _ in range(20):
        cluster.reconcile()
        if any(podutil.stands_by(pod) for pod in cluster.engine_pods if podutil.is_ready(pod)):
            break
    else:
        raise AssertionError("no engine that served is on its way to standby")
    cluster.demand()
    cluster.now += timedelta(seconds=10)
    cluster.reconcile()
    cluster.settle()
    assert cluster.state == (1, 1, 2)


def test_what_stands_by_does_not_count_as_serving_when_it_is_decided_how_many_are_needed() -> None:
    cluster = Pooled(POOLED | {"standby": 3})
    assert cluster.state == (1, 3, 4)
    cluster.running = 20
    cluster.steps(60)
    assert (len(cluster.serving), len(cluster.standing_by)) == (cluster.scaling["replicas"], 3)
    assert cluster.scaling["replicas"] >= 3
    assert "20 requests" in cluster.scaling["reason"]


def test_the_time_since_a_woken_engine_was_made_is_not_what_engines_take_to_start() -> None:
    cluster = Pooled()
    [spare] = cluster.standing_by
    cluster.decide(2)
    made = "2020-01-01T00:00:00Z"
    pods(cluster)[spare]["metadata"]["creationTimestamp"] = made
    pods(cluster)[spare]["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    cluster.steps(30)
    assert cluster.autoscaler is not None
    assert cluster.autoscaler.memory.start_seconds == 60.0, "what is assumed until one is measured"


def test_an_engine_that_is_lost_is_replaced_by_one_that_stood_by_at_once() -> None:
    cluster = Pooled()
    [spare], [serving] = cluster.standing_by, cluster.serving
    cluster.terminate_container(pods(cluster)[serving], "engine", 1)
    cluster.reconcile()
    cluster.reconcile()
    assert not cluster.engines[spare].draining
    cluster.use(spare, cached=100)
    cluster.settle()
    assert cluster.state == (1, 1, 2)
    assert cluster.serving == [spare], "the one that comes back stands by"


@pytest.mark.parametrize("restarts", [True, False])
def test_one_that_ends_on_standby_is_replaced_or_stands_by_again(restarts: bool) -> None:
    cluster = Pooled()
    [spare], [serving] = cluster.standing_by, cluster.serving
    if restarts:
        cluster.terminate_container(pods(cluster)[spare], "engine", 1)
    else:
        pods(cluster)[spare]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        cluster.run_controllers()
        cluster.remove_terminating_pods()
    cluster.reconcile()
    assert (cluster.scaling["standby"], cluster.serving) == (0, [serving])
    cluster.settle()
    assert (cluster.state, cluster.serving) == ((1, 1, 2), [serving])
    assert (cluster.standing_by == [spare]) == restarts


def test_one_that_cannot_be_woken_is_asked_ever_more_seldom_and_holds_nothing_up() -> None:
    cluster = Pooled()
    [spare] = cluster.standing_by
    cluster.deaf = {spare}
    cluster.bound(2)
    cluster.reconcile()
    waits = []
    for _ in range(8):
        cluster.now += timedelta(seconds=WAKE_SECONDS)
        plan = cluster.reconcile()
        assert plan.actions == [DrainPod(spare, draining=False)]
        waits.append(plan.requeue_after or 0.0)
    assert waits == sorted(waits)
    assert waits[-1] > 1.0
    cluster.settle()
    assert len(cluster.serving) == 2, "the one that refilled the pool serves"
    cluster.deaf = set()
    cluster.reconcile()
    cluster.settle()
    assert cluster.state == (2, 1, 3)


def test_nobody_goes_to_standby_before_the_one_that_was_woken_is_ready() -> None:
    cluster = Pooled()
    [spare], [first] = cluster.standing_by, cluster.serving
    cluster.deaf = {spare}
    cluster.use(spare, running=1)
    cluster.bound(2)
    cluster.reconcile()
    cluster.reconcile()
    cluster.run_controllers()
    for pod in cluster.engine_pods:
        cluster.become_ready(pod)
    [third] = {*cluster.serving} - {first}
    cluster.use(third, running=1)
    for _ in range(4):
        cluster.reconcile()
    assert cluster.serving == sorted([first, third])
    cluster.deaf = set()
    cluster.settle()
    assert (cluster.state, cluster.standing_by) == ((2, 1, 3), [first])


def test_an_operator_that_is_killed_after_any_step_goes_on() -> None:
    for steps in (1, 2, 3, 5, 8):
        cluster = Pooled()
        for engines in (3, 1, 2):
            cluster.bound(engines)
            for _ in range(steps):
                cluster.reconcile()
            cluster.restart_operator()
            cluster.settle()
            assert cluster.state == (engines, 1, engines + 1), steps


@pytest.mark.parametrize("surge", [0, 1, 2])
@pytest.mark.parametrize("standby", [1, 2])
def test_a_rollout_replaces_those_that_stand_by_too_and_as_many_serve_throughout(surge: int, standby: int) -> None:
    rollout = {"maxSurge": surge, "maxUnavailable": 0 if surge else 1}
    cluster = Pooled(POOLED | {"standby": standby, "min": 2}, rollout=rollout)
    old = {*cluster.serving, *cluster.standing_by}
    assert cluster.state == (2, standby, 2 + standby)
    cluster.fewest_serving = 99
    cluster.edit(engine={"maxNumSeqs": 8})
    for _ in range(40):
        cluster.bring_up()
    assert cluster.state == (2, standby, 2 + standby)
    assert not old & {*cluster.serving, *cluster.standing_by}
    assert cluster.fewest_serving == 2, "what stands by makes up for what is unavailable"
    revision = cluster.service["status"]["revision"]
    assert (revision["stable"], revision["updating"]) == (revision["current"], False)


def test_a_rollout_at_zero_leaves_nobody_serving() -> None:
    cluster = Pooled(ASLEEP)
    cluster.rest()
    cluster.step()
    cluster.settle()
    old = cluster.standing_by
    cluster.edit(engine={"maxNumSeqs": 8})
    for _ in range(20):
        cluster.bring_up()
        cluster.rest()
    assert cluster.state == (0, 1, 1)
    assert cluster.standing_by != old


@pytest.mark.parametrize(("serving", "new", "old"), [(1, 1, 1), (3, 1, 3), (4, 1, 4)])
def test_the_engines_of_a_canary_serve_and_stable_ones_stand_by(serving: int, new: int, old: int) -> None:
    cluster, stable = _on_trial(serving)
    revisions = [podutil.revision(pods(cluster)[name]) == stable for name in cluster.serving]
    assert (revisions.count(False), revisions.count(True)) == (new, old)
    assert [podutil.revision(pods(cluster)[name]) for name in cluster.standing_by] == [stable]


def test_a_stable_engine_that_is_lost_beside_a_canary_is_replaced_by_the_stable_one_that_stood_by() -> None:
    cluster, stable = _on_trial(1)
    [spare] = cluster.standing_by
    cluster.terminate_container(pods(cluster)[_serving_of(cluster, stable)], "engine", 1)
    cluster.reconcile()
    cluster.reconcile()
    cluster.become_ready(pods(cluster)[spare])
    assert _serving_of(cluster, stable) == spare


def test_what_stood_by_is_ready_before_an_engine_leaves_for_it() -> None:
    cluster, stable = _on_trial(1, maxUnavailable=1)
    [spare] = cluster.standing_by
    cluster.terminate_container(pods(cluster)[_serving_of(cluster, stable)], "engine", 1)
    cluster.edit(engine={})  # the canary is withdrawn
    cluster.deaf = {spare}
    cluster.fewest_serving = 99
    for _ in range(4):
        cluster.reconcile()
    assert cluster.fewest_serving == 1
    cluster.deaf = set()
    cluster.settle()
    assert cluster.state == (1, 1, 2)


def _serving_of(cluster: Pooled, revision: str) -> str:
    [name] = [name for name in cluster.serving if podutil.revision(pods(cluster)[name]) == revision]
    return name


def _on_trial(serving: int, **rollout: Any) -> tuple[Pooled, str]:
    """With a canary at its first step, and the stable revision."""
    canary = {"steps": [25, 50], "interval": "60s", "minRequests": 100}
    cluster = Pooled(POOLED | {"min": serving}, rollout={"canary": canary, **rollout})
    stable = cluster.service["status"]["revision"]["current"]
    cluster.edit(engine={"maxNumSeqs": 8})
    for _ in range(10):
        cluster.bring_up()
    assert cluster.service["status"]["canary"]["phase"] == "Running"
    return cluster, stable


@pytest.mark.parametrize("seed", range(8))
def test_in_any_order_of_changes_as_many_serve_as_both_before_and_after(seed: int) -> None:
    chance = random.Random(seed)
    cluster = Pooled(POOLED | {"standby": 2, "min": 2})
    serving, standby = 2, 2
    for _ in range(12):
        before, cluster.fewest_serving = serving, 99
        match chance.choice(["serve", "serve", "pool", "edit", "restart"]):
            case "serve":
                serving = chance.randint(1, 4)
                cluster.bound(serving)
            case "pool":
                standby = chance.randint(1, 3)
                cluster.edit(scaling=cluster.service["spec"]["scaling"] | {"standby": standby})
            case "edit":
                cluster.edit(engine={"maxNumSeqs": chance.randint(1, 9)})
            case "restart":
                cluster.restart_operator()
        for name in cluster.serving:
            cluster.use(name, running=chance.randint(0, 3), cached=chance.randint(0, 3))
        for _ in range(chance.randint(1, 6)):
            cluster.reconcile()
        cluster.settle()
        assert cluster.fewest_serving >= min(before, serving)
        for name in cluster.standing_by:
            assert podutil.stands_by(pods(cluster)[name])
    for _ in range(30):
        cluster.bring_up()
    assert cluster.state == (serving, standby, serving + standby)


def test_what_stands_by_blocks_no_eviction_of_another() -> None:
    cluster = Pooled(POOLED | {"standby": 2})
    budget = Ref("PodDisruptionBudget", "team", "qwen-engine")
    assert cluster.objects[budget]["spec"]["maxUnavailable"] == 3
    cluster.edit(scaling=POOLED | {"standby": 0})
    cluster.settle()
    assert cluster.objects[budget]["spec"]["maxUnavailable"] == 1


def test_where_pods_may_not_be_annotated_all_engines_serve() -> None:
    cluster = Pooled(POOLED | {"standby": 0})
    cluster.edit(scaling=POOLED)
    annotate = cluster._annotate
    cluster._annotate = lambda applied: None  # type: ignore[method-assign]
    for _ in range(6):
        cluster.bring_up()
    assert cluster.state == (2, 0, 2)
    cluster._annotate = annotate  # type: ignore[method-assign]
    cluster.settle()
    assert cluster.state == (1, 1, 2)


@pytest.mark.parametrize(
    ("scaling", "engine", "said"),
    [
        (POOLED, {}, ""),
        (ASLEEP, {}, ""),
        ({"mode": "Fixed", "standby": 1}, {}, "goes with mode Concurrency or SLO, and mode is Fixed"),
        ({"mode": "External", "standby": 1}, {}, "goes with mode Concurrency or SLO, and mode is External"),
        (POOLED | {"mode": "Advisory"}, {}, "goes with mode Concurrency or SLO, and mode is Advisory"),
        (POOLED, {"gpus": {"tensorParallel": 2, "nodes": 2}}, "is for engines on one machine"),
    ],
)
def test_what_it_does_not_go_with_is_refused(scaling: dict[str, Any], engine: dict[str, Any], said: str) -> None:
    obj = service({"scaling": scaling, "engine": engine})
    if not said:
        parse_service(obj)
        return
    with pytest.raises(SpecError) as caught:
        parse_service(obj)
    [problem] = caught.value.problems
    assert problem.path == "spec.scaling.standby"
    assert problem.message.startswith(said)
