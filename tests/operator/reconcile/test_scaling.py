"""Scaling by load: decisions are written first and acted upon then; what is not known never takes an engine away."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest
from operator_support.mini_cluster import MiniCluster, service
from operator_support.scaled import CONCURRENCY, SLO, Scaled

from blade_operator.model import pods as podutil
from blade_operator.reconcile.scale_down import leaving
from blade_operator.reconcile.scaling.look import PERIOD, UNMEASURED
from blade_protocol.signals import Percentiles


@pytest.fixture
def cluster() -> Scaled:
    return Scaled(CONCURRENCY)


def test_a_decision_is_written_first_and_acted_upon_then(cluster: Scaled) -> None:
    cluster.running, cluster.queued = 16, 8
    cluster.now += timedelta(seconds=PERIOD)
    plan = cluster.reconcile()
    assert plan.status is not None
    assert (plan.status["scaling"]["replicas"], plan.status["desiredReplicas"], cluster.replicas) == (3, 1, 1)
    [event] = [event for event in plan.events if event.reason == "ScaledUp"]
    assert event.message == "Concurrency: 1 -> 3 engines: 16 requests at engines and 8 waiting, 8 an engine"
    assert plan.requeue_after is not None
    assert plan.requeue_after < 1
    cluster.reconcile()
    assert (cluster.replicas, cluster.service["status"]["desiredReplicas"]) == (3, 3)
    [change] = cluster.scaling["changes"]
    assert change.endswith("Z 1 -> 3: 16 requests at engines and 8 waiting, 8 an engine")
    assert "spec" not in (plan.status or {})
    assert cluster.service["spec"]["replicas"] == 1


def test_engines_go_one_after_the_other_once_fewer_have_been_enough_for_a_while(cluster: Scaled) -> None:
    cluster.running = 24
    cluster.step()
    assert cluster.replicas == 3
    cluster.running = 0
    cluster.steps(100)
    assert cluster.replicas == 3
    seen = set()
    for _ in range(30):
        seen.add(cluster.replicas)
        cluster.step()
    assert seen == {1, 2, 3}
    assert cluster.replicas == 1
    assert [change.split()[1:4] for change in cluster.scaling["changes"]] == [
        ["1", "->", "3:"],
        ["3", "->", "2:"],
        ["2", "->", "1:"],
    ]
    assert cluster.condition == ("True", "Deciding")


def test_only_the_last_five_changes_are_kept(cluster: Scaled) -> None:
    for running in (16, 24, 32, 40, 48, 56, 64):
        cluster.running = running
        cluster.step(60)
    assert len(cluster.scaling["changes"]) == 5
    assert cluster.scaling["replicas"] == 8


def test_engines_that_start_count(cluster: Scaled) -> None:
    cluster.running = 24
    cluster.now += timedelta(seconds=PERIOD)
    for _ in range(20):  # no pod becomes ready
        cluster.reconcile()
        cluster.run_controllers()
        cluster.now += timedelta(seconds=PERIOD)
    assert cluster.scaling["replicas"] == 3
    assert len(cluster.engine_pods) == 3


@pytest.mark.parametrize("acted", [False, True])
def test_a_killed_operator_goes_on_from_what_is_written(cluster: Scaled, acted: bool) -> None:
    cluster.running = 24
    cluster.now += timedelta(seconds=PERIOD)
    cluster.reconcile()
    if acted:
        cluster.reconcile()
    cluster.restart_operator()
    cluster.running = 0
    cluster.bring_up()
    assert (cluster.replicas, cluster.scaling["replicas"]) == (3, 3)


def test_an_operator_that_was_away_for_five_minutes_does_not_jump(cluster: Scaled) -> None:
    cluster.running = 40
    cluster.step()
    assert cluster.replicas == 5
    cluster.running = 1
    cluster.steps(60)
    cluster.restart_operator(away=300)
    cluster.steps(110)
    assert cluster.replicas == 5
    cluster.steps(60)
    assert cluster.replicas == 4


def test_a_restarted_operator_writes_nothing_where_nothing_has_changed(cluster: Scaled) -> None:
    cluster.running = 24
    cluster.steps(300)
    cluster.restart_operator()
    before = cluster.statuses
    cluster.steps(120)
    assert cluster.statuses == before


def _mute(cluster: Scaled) -> None:
    cluster.silent = {pod["metadata"]["name"] for pod in cluster.pods}


def _late(cluster: Scaled) -> None:
    cluster.late = 600


def _garbage(cluster: Scaled) -> None:
    cluster.arrivals = math.nan


@pytest.mark.parametrize(
    ("harm", "reason"),
    [(_mute, "NoMetrics"), (_late, "StaleMetrics"), (_garbage, "NoMetrics")],
    ids=["dead", "old", "NaN"],
)
def test_without_metrics_nothing_changes_and_the_condition_says_so(
    cluster: Scaled, harm: Callable[[Scaled], None], reason: str
) -> None:
    cluster.running = 24
    cluster.step()
    cluster.running = 0
    harm(cluster)
    cluster.steps(600, every=30)
    assert cluster.replicas == 3
    assert cluster.condition == ("Unknown", reason)
    assert "3 engines stay" in cluster.message
    cluster.silent, cluster.late, cluster.arrivals = set(), 0, 0.0
    cluster.steps(100)
    assert (cluster.replicas, cluster.condition) == (3, ("True", "Deciding"))  # the wait begins anew
    cluster.steps(600)
    assert cluster.replicas == 1


def test_with_metrics_of_some_routers_engines_are_added_and_never_removed() -> None:
    cluster = Scaled(CONCURRENCY, router={"replicas": 2})
    cluster.running = 48
    cluster.step()
    assert cluster.replicas == 5  # up by four at once
    cluster.step(61)
    assert cluster.replicas == 6
    cluster.silent = {next(pod["metadata"]["name"] for pod in cluster.pods if podutil.role(pod) == "router")}
    cluster.steps(600)
    assert (cluster.replicas, cluster.condition) == (6, ("Unknown", "SomeMetrics"))
    cluster.running = 140  # half of it is seen
    cluster.steps(120)
    assert cluster.replicas == 8


def test_a_clock_that_goes_back_is_named_and_takes_no_engine_away(cluster: Scaled) -> None:
    cluster.running = 24
    cluster.steps(60)
    cluster.running = 0
    cluster.steps(60)
    cluster.now -= timedelta(hours=1)
    cluster.reconcile()
    assert (cluster.replicas, cluster.condition) == (3, ("Unknown", "ClockJumped"))
    cluster.steps(100)
    assert (cluster.replicas, cluster.condition) == (3, ("True", "Deciding"))
    cluster.steps(60)
    assert cluster.replicas == 2


def test_a_clock_that_goes_back_while_the_operator_is_away_is_noticed(cluster: Scaled) -> None:
    cluster.running = 24
    cluster.steps(60)
    cluster.running = 0
    cluster.restart_operator(away=-3600)
    cluster.reconcile()
    assert (cluster.replicas, cluster.condition) == (3, ("Unknown", "ClockJumped"))


def test_a_clock_that_leaps_forward_takes_no_engine_away(cluster: Scaled) -> None:
    cluster.running = 24
    cluster.steps(60)
    cluster.running = 0
    cluster.steps(60)
    cluster.now += timedelta(hours=1)
    cluster.steps(60)
    assert cluster.replicas == 3


def test_numbers_that_change_all_the_time_are_written_at_most_once_a_minute(cluster: Scaled) -> None:
    cluster.running = 30
    cluster.steps(120)
    before = cluster.statuses
    for minute in range(10):
        for step in range(6):
            cluster.running = 26 + (minute + step) % 6
            cluster.step()
    assert cluster.replicas == 4
    assert 0 < cluster.statuses - before <= 10


def test_a_steady_load_writes_nothing() -> None:
    cluster = Scaled(SLO)
    cluster.running, cluster.arrivals = 2, 1.0
    cluster.ttft, cluster.tpot = Percentiles(p50=0.05, p90=0.1, p99=0.2), Percentiles(p50=0.01, p90=0.01, p99=0.02)
    cluster.steps(3600, every=30)  # what an engine can do has been learnt
    before = cluster.statuses
    cluster.steps(600)
    assert cluster.statuses - before <= 1
    assert cluster.condition == ("True", "Deciding")


def test_a_missed_promise_adds_engines() -> None:
    cluster = Scaled(SLO)
    cluster.running, cluster.arrivals = 12, 4.0
    cluster.ttft, cluster.tpot = Percentiles(p50=0.4, p90=0.8, p99=1.0), Percentiles(p50=0.02, p90=0.03, p99=0.04)
    cluster.steps(30)
    assert cluster.replicas > 1
    assert "TTFT 800 ms of 500 ms" in cluster.scaling["changes"][0]


def test_slo_without_a_stream_to_measure_keeps_the_engines_and_says_so() -> None:
    cluster = Scaled(SLO)
    cluster.running, cluster.arrivals = 4, 2.0
    cluster.steps(UNMEASURED + 2 * PERIOD)
    assert cluster.condition == ("Unknown", "SLOUnmeasured")
    assert cluster.replicas == 1


def test_the_most_is_kept_to_and_named(cluster: Scaled) -> None:
    cluster.running = 200
    cluster.steps(120)
    assert (cluster.replicas, cluster.condition) == (8, ("False", "AtMaximum"))
    assert [event.type for event in cluster.events if event.reason == "AtMaximum"] == ["Warning"]


def test_a_budget_bounds_and_is_named() -> None:
    cluster = Scaled({**CONCURRENCY, "maxGPUs": 7}, engine={"gpus": {"count": 2, "tensorParallel": 2}})
    cluster.running = 200
    cluster.steps(120)
    assert (cluster.replicas, cluster.condition) == (3, ("False", "BudgetLimited"))


def test_a_budget_below_min_is_named_and_min_runs() -> None:
    cluster = Scaled({**CONCURRENCY, "min": 2, "maxGPUs": 3}, engine={"gpus": {"count": 2, "tensorParallel": 2}})
    cluster.running = 200
    cluster.steps(120)
    assert (cluster.replicas, cluster.condition) == (2, ("False", "BudgetBelowMin"))


def test_a_cost_that_is_the_tighter_budget_bounds_what_is_needed() -> None:
    gpus = {"gpus": {"count": 2, "tensorParallel": 2}}
    cluster = Scaled({**CONCURRENCY, "maxGPUs": 8, "cost": {"engine": "2.50", "max": "7.60"}}, engine=gpus)
    cluster.running = 200
    cluster.steps(120)
    assert (cluster.replicas, cluster.condition) == (3, ("False", "BudgetLimited"))
    assert "spec.scaling.cost.max allows 3 engines" in cluster.message
    cluster.edit(scaling={**CONCURRENCY, "min": 2, "cost": {"engine": "0.9", "max": "1.7"}})
    cluster.steps(20)
    assert (cluster.replicas, cluster.condition) == (2, ("False", "BudgetBelowMin"))
    assert "2 engines are more than spec.scaling.cost.max, 1.7, allows" in cluster.message


def test_a_schedule_holds_at_its_time_and_nonsense_is_named() -> None:
    night = {"cron": "30 0 * * *", "timeZone": "UTC", "duration": "30m", "min": 4}
    cluster = Scaled({**CONCURRENCY, "schedules": [night]})
    cluster.steps(60)
    assert cluster.replicas == 1
    cluster.now += timedelta(minutes=30)
    cluster.steps(20)
    assert cluster.replicas == 4
    cluster.edit(scaling={**CONCURRENCY, "schedules": [{**night, "cron": "at night"}]})
    cluster.steps(20)
    assert cluster.condition == ("False", "ScheduleInvalid")
    assert "spec.scaling.schedules[0]: cron 'at night'" in cluster.message
    assert cluster.replicas == 4  # until it is known to be needless


def test_changed_bounds_hold_at_once_and_stay(cluster: Scaled) -> None:
    cluster.edit(scaling={**CONCURRENCY, "min": 3})
    cluster.bring_up()
    assert (cluster.replicas, cluster.scaling["replicas"]) == (3, 3)
    cluster.edit(scaling={**CONCURRENCY, "min": 1, "max": 2})
    cluster.bring_up()
    cluster.bring_up()
    assert (cluster.replicas, cluster.scaling["replicas"]) == (2, 2)


def test_somebody_who_sets_replicas_meanwhile_is_told(cluster: Scaled) -> None:
    cluster.steps(60)
    cluster.edit(replicas=5)
    cluster.steps(20)
    assert (cluster.replicas, cluster.condition) == (1, ("True", "ReplicasIgnored"))
    assert "HorizontalPodAutoscaler" in cluster.message
    cluster.edit(replicas=1)
    cluster.steps(20)
    assert cluster.condition == ("True", "Deciding")


def test_advice_is_in_the_status_alone() -> None:
    cluster = Scaled({**CONCURRENCY, "mode": "Advisory"}, replicas=2)
    cluster.running = 40
    cluster.steps(60)
    assert (cluster.replicas, cluster.scaling["replicas"]) == (2, 5)
    assert cluster.service["status"]["desiredReplicas"] == 2
    assert {event.reason for event in cluster.events} & {"ScaledUp", "AdvisesUp"} == {"ScaledUp", "AdvisesUp"}
    assert all("from 0 to" in event.message for event in cluster.events if event.reason == "ScaledUp")


def test_another_mode_goes_on_with_the_engines_that_there_are(cluster: Scaled) -> None:
    cluster.running = 40
    cluster.step()
    assert cluster.replicas == 5
    cluster.edit(scaling={**SLO, "max": 8})
    cluster.bring_up()
    assert (cluster.replicas, cluster.scaling["mode"]) == (5, "SLO")
    cluster.edit(scaling={"mode": "Fixed"}, replicas=2)
    for _ in range(5):
        cluster.bring_up()
    assert (cluster.replicas, cluster.scaling) == (2, {})
    assert not any(each["type"] == "Scaling" for each in cluster.service["status"]["conditions"])


def test_a_service_begins_with_its_replicas_within_the_bounds() -> None:
    assert Scaled(CONCURRENCY, replicas=4).replicas == 4
    assert Scaled({**CONCURRENCY, "min": 2}, replicas=0).replicas == 2
    assert Scaled({**CONCURRENCY, "max": 3}, replicas=9).replicas == 3


def test_a_new_revision_is_rolled_out_with_the_engines_decided_on(cluster: Scaled) -> None:
    cluster.running = 24
    cluster.step()
    cluster.edit(engine={"contextLength": 2048})
    for _ in range(12):
        cluster.step()
    current = cluster.service["status"]["revision"]["current"]
    assert [podutil.revision(pod) for pod in cluster.engine_pods] == [current] * 3
    assert cluster.scaling["replicas"] == 3


def test_an_engine_that_never_starts_keeps_no_other(cluster: Scaled) -> None:
    cluster.running = 24
    cluster.now += timedelta(seconds=PERIOD)
    cluster.reconcile()
    cluster.reconcile()
    cluster.run_controllers()
    for pod in cluster.engine_pods:
        pod["metadata"]["creationTimestamp"] = cluster.now.isoformat()
    cluster.running = 0
    for _ in range(150):
        cluster.now += timedelta(seconds=PERIOD)
        cluster.reconcile()
        cluster.run_controllers()
        cluster.remove_terminating_pods()
    assert cluster.replicas == 1


def test_an_invalid_spec_leaves_everything_as_it_is(cluster: Scaled) -> None:
    cluster.running = 24
    cluster.step()
    before = dict(cluster.scaling)
    cluster.edit(scaling={**CONCURRENCY, "min": 9})
    cluster.running = 0
    cluster.steps(300)
    assert cluster.replicas == 3
    assert cluster.scaling == before
    assert cluster.condition == ("True", "Deciding")


def test_idle_services_sleep_and_waiting_requests_wake_them() -> None:
    cluster = Scaled({**CONCURRENCY, "min": 0, "idleToZero": "1m"})
    cluster.running = 1
    cluster.steps(30)
    cluster.running = 0
    cluster.steps(40)
    assert cluster.replicas == 1
    cluster.steps(60)
    assert (cluster.replicas, cluster.service["status"]["phase"]) == (0, "Sleeping")
    cluster.queued = 3
    cluster.step(3)
    assert cluster.replicas == 1


def test_a_service_that_is_not_scaled_asks_no_router_and_says_nothing() -> None:
    cluster = MiniCluster(service({"replicas": 2}))
    cluster.signals = lambda at: pytest.fail("a router was asked")
    cluster.converge()
    assert "scaling" not in cluster.service["status"]
    assert cluster.service["status"]["desiredReplicas"] == 2
    assert cluster.autoscaler is None


def test_of_idle_engines_the_one_with_the_least_valuable_prefix_cache_goes() -> None:
    cluster = MiniCluster(service({"replicas": 3}))
    cluster.converge()
    names = [pod["metadata"]["name"] for pod in cluster.engine_pods]
    for name, cached in zip(names, (900, 20, 500), strict=True):
        cluster.engines[name] = msgspec.structs.replace(cluster.engines[name], cached_tokens_total=cached)
    going = leaving(cluster.engine_pods, 2, cluster.engines)
    assert [pod["metadata"]["name"] for pod in going] == [names[1], names[2]]
    cluster.engines[names[1]] = msgspec.structs.replace(cluster.engines[names[1]], running=1)
    going = leaving(cluster.engine_pods, 1, cluster.engines)
    assert [pod["metadata"]["name"] for pod in going] == [names[2]]
