"""Zero and back: idle → no engine, a held request → one, and never back and forth."""

from __future__ import annotations

from datetime import timedelta

import pytest
from operator_support.mini_cluster import MiniCluster, service
from operator_support.sleepy import IDLE_TO_ZERO, SLEEPY, Sleepy

from blade_operator.model import pods as podutil
from blade_operator.model.plan import DrainPod
from blade_operator.reconcile.scaling.look import PERIOD
from blade_operator.render.router_config import router_config
from blade_operator.spec.parse import parse_service


def test_idle_services_sleep_and_a_held_request_wakes_them() -> None:
    cluster = Sleepy()
    assert cluster.replicas == 1, "it begins with an engine: whoever applies a service sees whether it works"
    cluster.rest(IDLE_TO_ZERO - 1)
    cluster.step()
    assert cluster.replicas == 1
    cluster.fall_asleep()
    assert cluster.plan().wakes_on_demand
    cluster.demand()
    cluster.step()
    assert (cluster.replicas, len(cluster.engine_pods)) == (1, 1)
    assert not cluster.plan().wakes_on_demand


def test_a_held_request_is_acted_upon_at_once_and_not_at_the_next_regular_decision() -> None:
    cluster = Sleepy()
    cluster.fall_asleep()
    cluster.step()
    cluster.reconcile()
    assert cluster.replicas == 0
    cluster.demand()
    plan = cluster.reconcile()
    assert plan.requeue_after is not None
    assert plan.requeue_after < 0.5
    cluster.reconcile()
    assert cluster.replicas == 1


def test_an_operator_that_was_restarted_wakes_a_service_at_its_first_look() -> None:
    cluster = Sleepy()
    cluster.fall_asleep()
    cluster.demand()
    cluster.restart_operator()
    cluster.reconcile()
    cluster.reconcile()
    assert cluster.replicas == 1


@pytest.mark.parametrize("engine_comes", [True, False])
def test_once_awake_it_stays_so_for_the_idle_time_also_when_nobody_waits_any_more(engine_comes: bool) -> None:
    cluster = Sleepy()
    cluster.fall_asleep()
    cluster.demand()
    cluster.reconcile()
    cluster.reconcile()
    assert cluster.replicas == 1
    cluster.held = {}  # the client left
    if engine_comes:
        cluster.bring_up()
    replicas = []
    for seconds in range(int(PERIOD), IDLE_TO_ZERO, int(PERIOD)):
        cluster.rest(seconds)
        cluster.now += timedelta(seconds=PERIOD)
        cluster.reconcile()
        cluster.reconcile()
        replicas.append(cluster.replicas)
    assert set(replicas) == {1}


def test_one_router_that_has_something_to_do_keeps_it_awake_whatever_another_says() -> None:
    cluster = Sleepy(router={"replicas": 2})
    busy, idle = cluster.routers
    cluster.idle = {busy: 1.0, idle: 9999.0}
    cluster.steps(600)
    assert cluster.replicas == 1
    assert "Sleeping" not in cluster.reasons("Sleeping")
    cluster.silent = {busy}
    cluster.steps(600)
    assert cluster.replicas == 1, "a router that does not respond may have something to do"
    cluster.silent = set()
    cluster.fall_asleep()
    cluster.idle = {busy: 9999.0, idle: 9999.0}
    cluster.demand()
    cluster.silent = {cluster.routers[1]}
    cluster.step()
    assert cluster.replicas == 1, "one that holds a request is enough to wake it"


def test_a_request_that_comes_while_the_last_engine_drains_keeps_it() -> None:
    cluster = Sleepy()
    [engine] = cluster.engine_pods
    name = engine["metadata"]["name"]
    cluster.deaf = {name}
    cluster.rest()
    cluster.now += timedelta(seconds=PERIOD)
    cluster.reconcile()
    cluster.reconcile()
    assert cluster.reconcile().actions == [DrainPod(name)]
    assert cluster.scaling["replicas"] == 0
    assert podutil.draining_since(cluster.engine_pods[0])
    cluster.demand()
    cluster.step()
    assert cluster.replicas == 1
    [kept] = cluster.engine_pods
    assert kept["metadata"]["name"] == name
    assert not podutil.draining_since(kept)


def test_a_request_that_comes_when_the_last_engine_has_been_told_to_go_gets_another_one() -> None:
    cluster = Sleepy()
    cluster.rest()
    cluster.now += timedelta(seconds=PERIOD)
    for _ in range(4):
        cluster.reconcile()
    cluster.run_controllers()
    cluster.demand()
    cluster.reconcile()
    cluster.reconcile()
    cluster.run_controllers()
    assert cluster.replicas == 1
    going, coming = cluster.engine_pods
    assert ("deletionTimestamp" in going["metadata"], "deletionTimestamp" in coming["metadata"]) == (True, False)


def test_without_a_word_from_a_router_it_goes_on_sleeping_and_says_so() -> None:
    cluster = Sleepy()
    cluster.fall_asleep()
    cluster.demand()
    cluster.silent = set(cluster.routers)
    cluster.steps(120)
    assert cluster.replicas == 0
    assert cluster.condition("Scaling")[:2] == ("Unknown", "NoMetrics")


@pytest.mark.parametrize(
    ("scaling", "replicas", "scaled_to_zero", "wakes"),
    [
        (None, 0, True, False),
        ({"mode": "Fixed"}, 0, True, False),
        ({"mode": "External"}, 0, False, False),
        (SLEEPY, 0, False, True),
        (SLEEPY, 1, False, True),
        (SLEEPY | {"mode": "Advisory"}, 0, True, False),
    ],
)
def test_routers_hold_requests_where_somebody_may_start_an_engine(
    scaling: dict[str, object] | None, replicas: int, scaled_to_zero: bool, wakes: bool
) -> None:
    spec = {"replicas": replicas} | ({} if scaling is None else {"scaling": scaling})
    hold = router_config(parse_service(service(spec))).hold
    assert (hold.scaled_to_zero, hold.wakes) == (scaled_to_zero, wakes)
    own = router_config(parse_service(service(spec | {"router": {"image": "router:1"}}))).hold
    assert (own.scaled_to_zero, own.wakes) == (False, False)


def test_what_routers_are_configured_with_does_not_change_when_it_sleeps() -> None:
    cluster = Sleepy()
    before = _router_objects(cluster)
    cluster.fall_asleep()
    assert _router_objects(cluster) == before


def _router_objects(cluster: MiniCluster) -> list[object]:
    return [obj for ref, obj in cluster.objects.items() if ref.name == "qwen-router"]
