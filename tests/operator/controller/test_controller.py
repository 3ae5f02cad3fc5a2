"""The controller around reconcile: it observes, executes plans, debounces changes, and retries failures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import pytest
from operator_support.apiserver import Clock
from operator_support.local import until
from prometheus_client import REGISTRY

from blade_operator import backoff
from blade_operator.cluster import Rejected
from blade_operator.controller import attempts
from blade_operator.controller.controller import BUSY_RESYNC, IDLE_RESYNC, MAX_RESYNC_RATE, Controller
from blade_operator.fleet import Fleet, FleetReport, Router
from blade_operator.model.objects import Key, Object, Ref
from blade_operator.model.observed import Observed
from blade_operator.model.plan import DrainPod, EventRecord, LoadAdapter, Plan, Prune, UnloadAdapter
from blade_protocol.adapters import LoadAdapterRequest
from blade_protocol.state import EngineState

KEY = Key("default", "qwen")
POD: Object = {"kind": "Pod", "metadata": {"name": "pod-1", "namespace": "default"}}


def _object(kind: str, name: str) -> Object:
    return {"kind": kind, "metadata": {"name": name, "namespace": "default"}}


class _Cluster:
    """Records every call, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.queue: asyncio.Queue[Key] = asyncio.Queue()
        self.gone = False
        self.refused: dict[str, str] = {}
        self.failing = ""
        self.adapter: Object = {}
        """A LoRAAdapter of the namespace."""
        self.claimed = False
        """By another installation."""
        self.pods: tuple[Object, ...] = (POD,)

    async def changes(self) -> AsyncIterator[Key]:
        while True:
            yield await self.queue.get()

    async def observe(self, key: Key) -> Observed | None:
        return None if self.gone else Observed({"metadata": {"name": key.name}}, pods=self.pods)

    async def apply(self, obj: Object) -> None:
        self.calls.append(("apply", obj["metadata"]["name"]))
        await asyncio.sleep(0)
        self.calls.append(("applied", obj["metadata"]["name"]))
        if obj["metadata"]["name"] in self.refused:
            raise Rejected(self.refused[obj["metadata"]["name"]])
        if obj["metadata"]["name"] == self.failing:
            raise RuntimeError("the API is away")

    async def replace(self, obj: Object) -> None:
        self.calls.append(("replace", obj["metadata"]["name"]))

    async def prune(self, prune: Prune) -> None:
        self.calls.append(("prune", prune.ref.name))
        if prune.ref.name in self.refused:
            raise Rejected(self.refused[prune.ref.name])

    async def delete(self, ref: Ref) -> None:
        self.calls.append(("delete", ref.name))

    async def claim(self, key: Key, before: Object, status: Object) -> bool:
        self.calls.append(("claim", before, status))
        return not self.claimed

    async def write_status(self, key: Key, status: Object) -> None:
        self.calls.append(("status", status["phase"]))

    def lora_adapters(self, namespace: str) -> tuple[Object, ...]:
        return (self.adapter,) if self.adapter else ()

    async def update_adapter_status(self, ref: Ref, change: Callable[[Object], Object]) -> None:
        self.calls.append(("adapter", ref.name, change(self.adapter)))

    async def emit(self, key: Key, event: EventRecord) -> None:
        self.calls.append(("event", event.reason))


class _Fleet(Fleet):
    def __init__(self, cluster: _Cluster, states: Mapping[str, EngineState]) -> None:
        self._cluster = cluster
        self._states = states

    async def query(self, pods: Iterable[Object], signals: bool = False) -> FleetReport:
        return FleetReport(self._states)

    async def drain(self, pod: Object, draining: bool = True, *, standby: bool = False) -> bool:
        done = "standby" if standby else "drain" if draining else "undrain"
        self._cluster.calls.append((done, pod["metadata"]["name"]))
        return True


def state(running: int) -> EngineState:
    return EngineState(
        model="m",
        revision="r",
        ready=True,
        draining=False,
        running=running,
        waiting=0,
        kv_blocks_total=1,
        kv_blocks_free=1,
        prompt_tokens_total=0,
        cached_tokens_total=0,
        generation_tokens_total=0,
        preemptions_total=0,
        epoch="e",
        sequence=0,
    )


def _controller(
    reconcile: Callable[[Observed, datetime], Plan], states: Mapping[str, EngineState] | None = None
) -> tuple[_Cluster, Controller]:
    cluster = _Cluster()
    return cluster, Controller(cluster, _Fleet(cluster, states or {}), reconcile)


async def test_a_plan_is_executed_drains_first_and_status_last() -> None:
    plan = Plan(
        replace=[_object("Secret", "token")],
        apply=[_object("Deployment", "new")],
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
    cluster, controller = _controller(lambda observed, now: plan)
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
    cluster, queried = _Cluster(), list[Object]()

    class Asked(_Fleet):
        async def query(self, pods: Iterable[Object], signals: bool = False) -> FleetReport:
            queried.extend(pods)
            return FleetReport()

    controller = Controller(cluster, Asked(cluster, {}), lambda observed, now: Plan(), 4, lambda observed: foreign)
    await controller.reconcile(KEY)
    assert queried == ([] if foreign else [POD])


async def test_where_another_installation_was_faster_the_rest_of_the_plan_is_void() -> None:
    mine = {"installation": "mine"}
    plan = Plan(claim=mine, apply=[_object("Deployment", "new")], status={"phase": "Ready"})
    cluster, controller = _controller(lambda observed, now: plan)
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

    _, controller = _controller(reconcile, {"pod-1": state(2)})
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
    _, controller = _controller(lambda observed, now: Plan(requeue_after=requeue_after), states)
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
    cluster, controller = _controller(lambda observed, now: plan)
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
    cluster, controller = _controller(lambda observed, now: Plan(status={"phase": "Ready"}))
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

    cluster, controller = _controller(reconcile)
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
    plan = Plan(apply=[_object("Deployment", "d"), _object("Secret", "s"), _object("ConfigMap", "c")])
    cluster, controller = _controller(lambda observed, now: plan)
    await controller.reconcile(KEY)
    assert cluster.calls == [
        ("apply", "s"),
        ("apply", "c"),
        ("applied", "s"),
        ("applied", "c"),
        ("apply", "d"),
        ("applied", "d"),
    ]


@pytest.fixture
def no_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off without a delay."""
    monkeypatch.setattr(backoff, "BASE", 0.0)


@pytest.mark.usefixtures("no_back_off")
async def test_an_object_the_cluster_rejects_stops_nothing_else_and_the_next_reconcile_knows() -> None:
    seen: list[Mapping[Ref, str]] = []
    plan = Plan(apply=[_object("Deployment", "bad"), _object("Service", "good")], status={"phase": "Pending"})

    def reconcile(observed: Observed, now: datetime) -> Plan:
        seen.append(observed.rejected)
        return plan

    cluster, controller = _controller(reconcile)
    cluster.refused["bad"] = 'violates PodSecurity "restricted:latest"'
    await controller.reconcile(KEY)
    assert ("applied", "good") in cluster.calls
    assert cluster.calls[-1] == ("status", "Pending")
    cluster.refused.clear()
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    assert seen == [{}, {Ref("Deployment", "default", "bad"): 'violates PodSecurity "restricted:latest"'}, {}]


@pytest.mark.usefixtures("no_back_off")
async def test_a_rejected_object_stays_rejected_while_the_api_server_is_unreachable() -> None:
    seen: list[dict[Ref, str]] = []

    def reconcile(observed: Observed, now: datetime) -> Plan:
        seen.append(dict(observed.rejected))
        return Plan(apply=[_object("Deployment", "bad")])

    cluster, controller = _controller(reconcile)
    cluster.refused["bad"] = "exceeded quota"
    await controller.reconcile(KEY)
    cluster.refused, cluster.failing = {}, "bad"
    with pytest.raises(RuntimeError):
        await controller.reconcile(KEY)
    cluster.failing = ""
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    refused = {Ref("Deployment", "default", "bad"): "exceeded quota"}
    assert seen == [{}, refused, refused, {}]


async def test_a_rejected_object_is_reattempt_without_any_change(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def reconcile(observed: Observed, now: datetime) -> Plan:
        seen.append(len(observed.rejected))
        return Plan(apply=[_object("Deployment", "bad")])

    cluster, controller = _controller(reconcile)
    cluster.refused["bad"] = "exceeded quota"
    task = asyncio.create_task(controller.run())
    cluster.queue.put_nowait(KEY)
    await until(lambda: seen[:3] == [0, 1, 1])
    assert "default/qwen: Deployment bad is refused: exceeded quota" in caplog.text
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_rejected_object_is_not_applied_at_every_reconcile_unless_it_changes() -> None:
    desired = {**_object("Deployment", "bad"), "spec": {"replicas": 1}}
    cluster, controller = _controller(lambda observed, now: Plan(apply=[desired]), {"pod-1": state(running=1)})
    cluster.refused["bad"] = "exceeded quota"
    delays = [await controller.reconcile(KEY) for _ in range(5)]
    assert cluster.calls.count(("apply", "bad")) == 1
    assert all(seconds is not None and seconds <= 1.2 * backoff.BASE for seconds in delays)
    desired = {**desired, "spec": {"replicas": 2}}
    await controller.reconcile(KEY)
    assert cluster.calls.count(("apply", "bad")) == 2


async def test_an_object_the_cluster_alters_is_not_applied_at_every_reconcile() -> None:
    """A webhook that rewrites images, for one: the observed object never equals the desired one."""
    desired = [_object("Deployment", "altered")]
    cluster, controller = _controller(lambda observed, now: Plan(apply=desired), {"pod-1": state(running=1)})
    for _ in range(5):
        await controller.reconcile(KEY)
    assert cluster.calls.count(("apply", "altered")) == 1
    desired.clear()  # it is as desired after all ...
    await controller.reconcile(KEY)
    desired.append(_object("Deployment", "altered"))  # ... until somebody changes it
    await controller.reconcile(KEY)
    assert cluster.calls.count(("apply", "altered")) == 2


async def test_what_a_webhook_adds_again_and_again_is_not_removed_at_every_reconcile() -> None:
    prune = Prune(Ref("Deployment", "default", "d"), ("/spec/template/spec/containers/1",))
    cluster, controller = _controller(lambda observed, now: Plan(prune=[prune]), {"pod-1": state(running=1)})
    cluster.refused["d"] = "the sidecar is required"
    for _ in range(5):
        await controller.reconcile(KEY)
    assert cluster.calls == [("prune", "d")]


def test_rejected_objects_are_reattempt_with_exponential_back_off_up_to_a_minute() -> None:
    clock = Clock()
    attempt = attempts.Attempts(clock)
    obj = _object("Deployment", "bad")
    pauses = []
    for _ in range(12):
        attempt.record(obj, "exceeded quota")
        assert attempt.retry_after is not None
        pauses.append(attempt.retry_after)
        assert attempt.backs_off(obj)
        clock.now += attempt.retry_after
        assert not attempt.backs_off(obj)
    assert pauses[0] < 0.3
    assert 40 < pauses[-1] <= 1.2 * backoff.CAP
    assert attempt.refused == {Ref.of(obj): "exceeded quota"}
    attempt.record(obj)
    assert attempt.refused == {}
    attempt.retain([])
    assert attempt.retry_after is None


async def test_an_error_lets_the_rest_of_its_wave_end_and_keeps_the_status_from_being_written() -> None:
    plan = Plan(
        apply=[_object("Secret", "s"), _object("Role", "r"), _object("Service", "x")], status={"phase": "Ready"}
    )
    cluster, controller = _controller(lambda observed, now: plan)
    cluster.failing = "s"
    with pytest.raises(RuntimeError, match="the API is away"):
        await controller.reconcile(KEY)
    assert ("applied", "r") in cluster.calls
    assert ("apply", "x") not in cluster.calls
    assert ("status", "Ready") not in cluster.calls


async def test_very_many_idle_services_are_resynced_less_often_active_ones_are_not() -> None:
    plans = {"rest": Plan(requeue_after=5.0), "moves": Plan(requeue_after=5.0, status={"phase": "Ready"})}
    _, controller = _controller(lambda observed, now: plans.get(observed.service["metadata"]["name"], Plan()))
    for number in range(1000):
        await controller.reconcile(Key("default", f"s{number}"))
    assert await controller.reconcile(Key("default", "rest")) == pytest.approx(1001 / MAX_RESYNC_RATE)
    assert await controller.reconcile(Key("default", "moves")) == 5.0


async def test_unresponsive_engines_delay_no_other_service() -> None:
    reconciled: list[str] = []
    cluster, _ = _controller(lambda observed, now: Plan())
    silent = asyncio.Event()

    class Slow(_Fleet):
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

    controller = Controller(_Cluster(), Engines(), decide)  # type: ignore[arg-type]
    await controller.reconcile(KEY)
    await controller.reconcile(KEY)
    request = LoadAdapterRequest(lora_name="sql", lora_path="/sql", wait=False, replace=True, register_only=True)
    assert asked == [request, "old", "old"], "a refused request waits for its back-off"
    assert seen == [{}, {("pod-1", "sql"): "rank 64 is more than 16"}]


async def test_a_lora_adapter_says_nothing_of_a_service_that_is_gone() -> None:
    cluster = _Cluster()
    cluster.gone = True
    cluster.adapter = {
        "metadata": {"name": "law", "generation": 1},
        "status": {"services": [{"service": KEY.name, "desired": 1, "loaded": 1}]},
    }
    assert await Controller(cluster, _Fleet(cluster, {}), lambda observed, now: Plan()).reconcile(KEY) is None
    assert cluster.calls == [("adapter", "law", {})]


async def test_routers_of_a_sleeping_service_are_waited_for_and_a_held_request_reconciles_it_at_once() -> None:
    cluster, held, reconciled = _Cluster(), asyncio.Event(), asyncio.Queue[bool]()
    cluster.pods = (_started_router("router"), {**_started_router("new"), "status": {"podIP": "10.0.0.3"}})
    waits: list[str] = []
    asleep = True

    class Routers(_Fleet):
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
