"""The controller around reconcile: it observes, executes plans, debounces changes, and retries failures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import pytest
from operator_support.local import until
from operator_support.recorded import KEY, POD, RecordingCluster, RecordingFleet, named, recorded, state
from prometheus_client import REGISTRY

from blade_operator.controller.controller import BUSY_RESYNC, IDLE_RESYNC, MAX_RESYNC_RATE, Controller
from blade_operator.fleet import FleetReport, Router
from blade_operator.model.objects import Key, Object, Ref
from blade_operator.model.observed import Observed
from blade_operator.model.plan import DrainPod, EventRecord, LoadAdapter, Plan, Prune, UnloadAdapter
from blade_protocol.adapters import LoadAdapterRequest
from blade_protocol.state import EngineState


async def test_a_plan_is_executed_drains_first_and_status_last() -> None:
    plan = Plan(
        replace=[named("Secret", "token")],
        apply=[named("Deployment", "new")],
        prune=[Prune(Ref("Deployment", "default", "edited"), ("/spec/x/0",))],
        delete=[Ref("Pod", "default", "old")],
        status={"phase": "Ready"},
        actions=[
            DrainPod("pod-1"),
            DrainPod("pod-1", draining=False),
            DrainPod("pod-1", standby=True),
            DrainPod("gone"),
        ],
        events=[EventRecord("Normal", "Scaled", "")],
    )
    cluster, controller = recorded(lambda observed, now: plan)
    await controller.reconcile(KEY)
    assert cluster.calls == [
        ("drain", "pod-1"),
        ("undrain", "pod-1"),
        ("standby", "pod-1"),
        ("replace", "token"),
        ("apply", "new"),
        ("applied", "new"),
        ("prune", "edited"),
        ("delete", "old"),
        ("event", "Scaled"),
        ("status", "Ready"),
    ]


@pytest.mark.parametrize("foreign", [True, False])
async def test_the_engines_of_another_installations_service_are_not_queried(foreign: bool) -> None:
    cluster, queried = RecordingCluster(), list[Object]()

    class Asked(RecordingFleet):
        async def query(self, pods: Iterable[Object], signals: bool = False) -> FleetReport:
            queried.extend(pods)
            return FleetReport()

    controller = Controller(cluster, Asked(cluster, {}), lambda observed, now: Plan(), 4, lambda observed: foreign)
    await controller.reconcile(KEY)
    assert queried == ([] if foreign else [POD])


async def test_where_another_installation_was_faster_the_rest_of_the_plan_is_void() -> None:
    mine = {"installation": "mine"}
    plan = Plan(claim=mine, apply=[named("Deployment", "new")], status={"phase": "Ready"})
    cluster, controller = recorded(lambda observed, now: plan)
    await controller.reconcile(KEY)
    assert [call[0] for call in cluster.calls] == ["claim", "apply", "applied", "status"]
    assert cluster.calls[0] == ("claim", {}, mine)
    cluster.calls.clear()
    cluster.claimed = True
    await controller.reconcile(KEY)
    assert cluster.calls == [("claim", {}, mine)]


async def test_reconcile_sees_the_state_of_the_engines() -> None:
    seen: list[Observed] = []

    def reconcile(observed: Observed, now: datetime) -> Plan:
        seen.append(observed)
        return Plan()

    _, controller = recorded(reconcile, {"pod-1": state(2)})
    await controller.reconcile(KEY)
    assert seen[0].engines["pod-1"].running == 2


@pytest.mark.parametrize(
    ("states", "requeue_after", "resync"),
    [
        ({}, None, IDLE_RESYNC),
        ({"pod-1": state(1)}, None, BUSY_RESYNC),
        ({}, 0.5, 0.5),
        ({}, 99.0, IDLE_RESYNC),
    ],
)
async def test_the_resync_is_sooner_when_requests_run_or_the_plan_requests_it(
    states: Mapping[str, EngineState], requeue_after: float | None, resync: float
) -> None:
    _, controller = recorded(lambda observed, now: Plan(requeue_after=requeue_after), states)
    assert await controller.reconcile(KEY) == resync


async def test_metrics_say_which_services_are_ready() -> None:
    def conditions(status: str, reason: str) -> Object:
        return {
            "phase": "",
            "conditions": [
                {"type": "Progressing", "status": "True"},
                {"type": "Ready", "status": status, "reason": reason},
            ],
        }

    def shown() -> float | None:
        labels = {"service_namespace": KEY.namespace, "service_name": KEY.name}
        return REGISTRY.get_sample_value("blade_operator_service_ready", labels)

    plan = Plan()
    cluster, controller = recorded(lambda observed, now: plan)
    for status, expected in (
        ({"phase": ""}, None),
        (conditions("False", "Starting"), 0.0),
        (conditions("True", "Ready"), 1.0),
        (conditions("False", "ScaledToZero"), None),
        (conditions("True", "Ready"), 1.0),
    ):
        plan = Plan(status=status)
        await controller.reconcile(KEY)
        assert shown() == expected
    cluster.gone = True
    await controller.reconcile(KEY)
    assert shown() is None


async def test_a_deleted_service_is_left_alone() -> None:
    cluster, controller = recorded(lambda observed, now: Plan(status={"phase": "Ready"}))
    cluster.gone = True
    assert await controller.reconcile(KEY) is None
    assert cluster.calls == []


async def test_a_burst_of_changes_is_one_reconcile_and_a_failed_reconcile_is_reattempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reconciled: list[str] = []

    def reconcile(observed: Observed, now: datetime) -> Plan:
        reconciled.append(observed.service["metadata"]["name"])
        if reconciled.count("sick") == 1 and reconciled[-1] == "sick":
            raise RuntimeError("the API is away")
        return Plan()

    cluster, controller = recorded(reconcile)
    task = asyncio.create_task(controller.run())
    for _ in range(20):
        cluster.queue.put_nowait(KEY)
    cluster.queue.put_nowait(Key("default", "sick"))
    await until(lambda: reconciled.count("sick") == 2)
    assert reconciled.count("qwen") == 1
    assert "default/sick: the API is away; next try in" in caplog.text
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_what_pods_need_is_applied_before_them_and_each_wave_concurrently() -> None:
    plan = Plan(apply=[named("Deployment", "d"), named("Secret", "s"), named("ConfigMap", "c")])
    cluster, controller = recorded(lambda observed, now: plan)
    await controller.reconcile(KEY)
    assert cluster.calls == [
        ("apply", "s"),
        ("apply", "c"),
        ("applied", "s"),
        ("applied", "c"),
        ("apply", "d"),
        ("applied", "d"),
    ]


async def test_very_many_idle_services_are_resynced_less_often_active_ones_are_not() -> None:
    plans = {"rest": Plan(requeue_after=5.0), "moves": Plan(requeue_after=5.0, status={"phase": "Ready"})}
    _, controller = recorded(lambda observed, now: plans.get(observed.service["metadata"]["name"], Plan()))
    for number in range(1000):
        await controller.reconcile(Key("default", f"s{number}"))
    assert await controller.reconcile(Key("default", "rest")) == pytest.approx(1001 / MAX_RESYNC_RATE)
    assert await controller.reconcile(Key("default", "moves")) == 5.0


async def test_unresponsive_engines_delay_no_other_service() -> None:
    reconciled: list[str] = []
    cluster, _ = recorded(lambda observed, now: Plan())
    silent = asyncio.Event()

    class Slow(RecordingFleet):
        queries = 0

        async def query(self, pods: Iterable[Object], signals: bool = False) -> Any:
            self.queries += 1
            if self.queries <= 4:
                await silent.wait()
            return FleetReport()

    def reconcile(observed: Observed, now: datetime) -> Plan:
        reconciled.append(observed.service["metadata"]["name"])
        return Plan()

    fleet = Slow(cluster, {})
    controller = Controller(cluster, fleet, reconcile, workers=2)
    task = asyncio.create_task(controller.run())
    for number in range(4):
        cluster.queue.put_nowait(Key("default", f"silent-{number}"))
    await until(lambda: fleet.queries == 4)
    cluster.queue.put_nowait(KEY)
    await until(lambda: reconciled == ["qwen"])
    silent.set()
    await until(lambda: len(reconciled) == 5)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_adapters_are_loaded_and_unloaded_and_refusals_reach_the_next_decision() -> None:
    asked: list[Any] = []

    class Engines:
        async def query(self, pods: Iterable[Object], signals: bool = False) -> FleetReport:
            return FleetReport()

        async def load_adapter(self, pod: Object, request: LoadAdapterRequest) -> str:
            asked.append(request)
            return "rank 64 is more than 16"

        async def unload_adapter(self, pod: Object, name: str) -> bool:
            asked.append(name)
            return True

    seen: list[Mapping[tuple[str, str], str]] = []

    def decide(observed: Observed, now: datetime) -> Plan:
        seen.append(observed.refused_adapters)
        return Plan(actions=[LoadAdapter("pod-1", "sql", "/sql", preload=False), UnloadAdapter("pod-1", "old")])

    controller = Controller(RecordingCluster(), Engines(), decide)  # type: ignore[arg-type]
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    request = LoadAdapterRequest(lora_name="sql", lora_path="/sql", wait=False, replace=True, register_only=True)
    assert asked == [request, "old", "old"], "a refused request waits for its back-off"
    assert seen == [{}, {("pod-1", "sql"): "rank 64 is more than 16"}]


async def test_a_lora_adapter_says_nothing_of_a_service_that_is_gone() -> None:
    cluster = RecordingCluster()
    cluster.gone = True
    cluster.adapter = {
        "metadata": {"name": "law", "generation": 1},
        "status": {"services": [{"service": KEY.name, "desired": 1, "loaded": 1}]},
    }
    assert await Controller(cluster, RecordingFleet(cluster, {}), lambda observed, now: Plan()).reconcile(KEY) is None
    assert cluster.calls == [("adapter", "law", {})]


async def test_routers_of_a_sleeping_service_are_waited_for_and_a_held_request_reconciles_it_at_once() -> None:
    cluster, held, reconciled = RecordingCluster(), asyncio.Event(), asyncio.Queue[bool]()
    cluster.pods = (_started_router("router"), {**_started_router("new"), "status": {"podIP": "10.0.0.3"}})
    waits: list[str] = []
    asleep = True

    class Routers(RecordingFleet):
        async def wait_for_demand(self, router: Router) -> bool:
            waits.append(router.name)
            return await held.wait()

    def reconcile(observed: Observed, now: datetime) -> Plan:
        reconciled.put_nowait(asleep)
        return Plan(wakes_on_demand=asleep)

    controller = Controller(cluster, Routers(cluster, {}), reconcile)
    running = asyncio.create_task(controller.run())
    cluster.queue.put_nowait(KEY)
    assert await reconciled.get()
    await until(lambda: waits)
    assert len(controller._demand) == 1
    asleep = False
    held.set()
    assert not await reconciled.get()
    await until(lambda: len(controller._demand) == 0)
    assert waits == ["router"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def _started_router(name: str) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"serving.bladellm.io/role": "router"}},
        "spec": {"containers": [{"name": "router", "ports": [{"name": "admin", "containerPort": 9080}]}]},
        "status": {"podIP": "10.0.0.2", "containerStatuses": [{"name": "router", "started": True}]},
    }
