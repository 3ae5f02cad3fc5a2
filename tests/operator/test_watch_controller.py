"""The control loop around reconcile: what is observed goes in, what is planned is carried out, failures come again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import pytest
from operator_support.apiserver import Clock
from operator_support.local import until

from blade_operator import attempts, backoff, watch
from blade_operator.cluster import Rejected
from blade_operator.fleet import Fleet
from blade_operator.objects import Key, Object, Ref
from blade_operator.observed import Observed
from blade_operator.plan import DrainPod, EventRecord, Plan
from blade_operator.watch import Controller
from blade_protocol.fetch import FetchProgress
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

    async def changes(self) -> AsyncIterator[Key]:
        while True:
            yield await self.queue.get()

    async def observe(self, key: Key) -> Observed | None:
        return None if self.gone else Observed({"metadata": {"name": key.name}}, pods=(POD,))

    async def apply(self, obj: Object) -> None:
        self.calls.append(("apply", obj["metadata"]["name"]))
        await asyncio.sleep(0)
        self.calls.append(("applied", obj["metadata"]["name"]))
        if obj["metadata"]["name"] in self.refused:
            raise Rejected(self.refused[obj["metadata"]["name"]])
        if obj["metadata"]["name"] == self.failing:
            raise RuntimeError("the API is away")

    async def delete(self, ref: Ref) -> None:
        self.calls.append(("delete", ref.name))

    async def write_status(self, key: Key, status: Object) -> None:
        self.calls.append(("status", status["phase"]))

    async def emit(self, key: Key, event: EventRecord) -> None:
        self.calls.append(("event", event.reason))


class _Fleet(Fleet):
    def __init__(self, cluster: _Cluster, states: Mapping[str, EngineState]) -> None:
        self._cluster = cluster
        self._states = states

    async def ask(self, pods: Iterable[Object]) -> tuple[Mapping[str, EngineState], Mapping[str, FetchProgress]]:
        return self._states, {}

    async def drain(self, pod: Object) -> bool:
        self._cluster.calls.append(("drain", pod["metadata"]["name"]))
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


async def test_a_plan_is_carried_out_drains_first_and_status_last() -> None:
    plan = Plan(
        apply=[_object("Deployment", "new")],
        delete=[Ref("Pod", "default", "old")],
        status={"phase": "Ready"},
        actions=[DrainPod("pod-1"), DrainPod("gone")],
        events=[EventRecord("Normal", "Scaled", "")],
    )
    cluster, controller = _controller(lambda observed, now: plan)
    await controller.look(KEY)
    assert cluster.calls == [
        ("drain", "pod-1"),
        ("apply", "new"),
        ("applied", "new"),
        ("delete", "old"),
        ("event", "Scaled"),
        ("status", "Ready"),
    ]


async def test_reconcile_sees_what_the_engines_say() -> None:
    seen: list[Observed] = []

    def reconcile(observed: Observed, now: datetime) -> Plan:
        seen.append(observed)
        return Plan()

    _, controller = _controller(reconcile, {"pod-1": state(2)})
    await controller.look(KEY)
    assert seen[0].engines["pod-1"].running == 2


@pytest.mark.parametrize(
    ("states", "wanted", "due"),
    [
        ({}, None, watch.IDLE_LOOK),
        ({"pod-1": state(1)}, None, watch.BUSY_LOOK),
        ({}, 0.5, 0.5),
        ({}, 99.0, watch.IDLE_LOOK),
    ],
)
async def test_the_next_look_is_sooner_when_requests_run_or_reconcile_asks(
    states: Mapping[str, EngineState], wanted: float | None, due: float
) -> None:
    _, controller = _controller(lambda observed, now: Plan(requeue_after=wanted), states)
    assert await controller.look(KEY) == due


async def test_a_service_that_is_gone_is_left_alone() -> None:
    cluster, controller = _controller(lambda observed, now: Plan(status={"phase": "Ready"}))
    cluster.gone = True
    assert await controller.look(KEY) is None
    assert cluster.calls == []


async def test_a_burst_of_changes_is_one_look_and_a_failing_look_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks: list[str] = []

    def reconcile(observed: Observed, now: datetime) -> Plan:
        looks.append(observed.service["metadata"]["name"])
        if looks.count("sick") == 1 and looks[-1] == "sick":
            raise RuntimeError("the API is away")
        return Plan()

    cluster, controller = _controller(reconcile)
    task = asyncio.create_task(controller.run())
    for _ in range(20):
        cluster.queue.put_nowait(KEY)
    cluster.queue.put_nowait(Key("default", "sick"))
    await until(lambda: looks.count("sick") == 2)
    assert looks.count("qwen") == 1
    assert "default/sick: the API is away; next try in" in caplog.text
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_what_pods_need_is_written_before_them_and_each_wave_at_once() -> None:
    plan = Plan(apply=[_object("Deployment", "d"), _object("Secret", "s"), _object("ConfigMap", "c")])
    cluster, controller = _controller(lambda observed, now: plan)
    await controller.look(KEY)
    assert cluster.calls == [
        ("apply", "s"),
        ("apply", "c"),
        ("applied", "s"),
        ("applied", "c"),
        ("apply", "d"),
        ("applied", "d"),
    ]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused may be tried again at once."""
    monkeypatch.setattr(backoff, "FIRST", 0.0)


@pytest.mark.usefixtures("impatient")
async def test_an_object_the_cluster_refuses_stops_nothing_else_and_the_next_look_knows() -> None:
    seen: list[Mapping[Ref, str]] = []
    plan = Plan(apply=[_object("Deployment", "bad"), _object("Service", "good")], status={"phase": "Pending"})

    def reconcile(observed: Observed, now: datetime) -> Plan:
        seen.append(observed.rejected)
        return plan

    cluster, controller = _controller(reconcile)
    cluster.refused["bad"] = 'violates PodSecurity "restricted:latest"'
    await controller.look(KEY)
    assert ("applied", "good") in cluster.calls
    assert cluster.calls[-1] == ("status", "Pending")
    cluster.refused.clear()
    await controller.look(KEY)
    await controller.look(KEY)
    assert seen == [{}, {Ref("Deployment", "default", "bad"): 'violates PodSecurity "restricted:latest"'}, {}]


@pytest.mark.usefixtures("impatient")
async def test_what_was_refused_stays_so_while_the_api_is_away() -> None:
    seen: list[dict[Ref, str]] = []

    def reconcile(observed: Observed, now: datetime) -> Plan:
        seen.append(dict(observed.rejected))
        return Plan(apply=[_object("Deployment", "bad")])

    cluster, controller = _controller(reconcile)
    cluster.refused["bad"] = "exceeded quota"
    await controller.look(KEY)
    cluster.refused, cluster.failing = {}, "bad"
    with pytest.raises(RuntimeError):
        await controller.look(KEY)
    cluster.failing = ""
    await controller.look(KEY)
    await controller.look(KEY)
    refused = {Ref("Deployment", "default", "bad"): "exceeded quota"}
    assert seen == [{}, refused, refused, {}]


async def test_a_refused_object_is_tried_again_without_any_change(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_a_refused_object_is_not_sent_with_every_look_unless_another_is_wanted() -> None:
    wanted = {**_object("Deployment", "bad"), "spec": {"replicas": 1}}
    cluster, controller = _controller(lambda observed, now: Plan(apply=[wanted]), {"pod-1": state(running=1)})
    cluster.refused["bad"] = "exceeded quota"
    again = [await controller.look(KEY) for _ in range(5)]
    assert cluster.calls.count(("apply", "bad")) == 1
    assert all(seconds is not None and seconds <= 1.2 * backoff.FIRST for seconds in again)
    wanted = {**wanted, "spec": {"replicas": 2}}
    await controller.look(KEY)
    assert cluster.calls.count(("apply", "bad")) == 2


async def test_an_object_the_cluster_alters_is_not_written_with_every_look() -> None:
    """A webhook that rewrites images, for one: what is there never becomes what is wanted."""
    wanted = [_object("Deployment", "altered")]
    cluster, controller = _controller(lambda observed, now: Plan(apply=wanted), {"pod-1": state(running=1)})
    for _ in range(5):
        await controller.look(KEY)
    assert cluster.calls.count(("apply", "altered")) == 1
    wanted.clear()  # it is as wanted after all ...
    await controller.look(KEY)
    wanted.append(_object("Deployment", "altered"))  # ... until somebody changes it
    await controller.look(KEY)
    assert cluster.calls.count(("apply", "altered")) == 2


def test_what_is_refused_is_tried_again_later_each_time_up_to_a_minute() -> None:
    clock = Clock()
    tried = attempts.Attempts(clock)
    obj = _object("Deployment", "bad")
    pauses = []
    for _ in range(12):
        tried.add(obj, "exceeded quota")
        assert tried.due is not None
        pauses.append(tried.due)
        assert tried.holds_back(obj)
        clock.now += tried.due
        assert not tried.holds_back(obj)
    assert pauses[0] < 0.3
    assert 40 < pauses[-1] <= 1.2 * backoff.MOST
    assert tried.refused == {Ref.of(obj): "exceeded quota"}
    tried.add(obj)
    assert tried.refused == {}
    tried.keep_only([])
    assert tried.due is None


async def test_an_error_lets_the_rest_of_its_wave_end_and_keeps_the_status_from_being_written() -> None:
    plan = Plan(
        apply=[_object("Secret", "s"), _object("Role", "r"), _object("Service", "x")], status={"phase": "Ready"}
    )
    cluster, controller = _controller(lambda observed, now: plan)
    cluster.failing = "s"
    with pytest.raises(RuntimeError, match="the API is away"):
        await controller.look(KEY)
    assert ("applied", "r") in cluster.calls
    assert ("apply", "x") not in cluster.calls
    assert ("status", "Ready") not in cluster.calls


async def test_very_many_services_at_rest_wait_longer_those_that_move_do_not() -> None:
    plans = {"rest": Plan(requeue_after=5.0), "moves": Plan(requeue_after=5.0, status={"phase": "Ready"})}
    _, controller = _controller(lambda observed, now: plans.get(observed.service["metadata"]["name"], Plan()))
    for number in range(1000):
        await controller.look(Key("default", f"s{number}"))
    assert await controller.look(Key("default", "rest")) == pytest.approx(1001 / watch.ROUTINE_LOOKS)
    assert await controller.look(Key("default", "moves")) == 5.0


async def test_engines_that_do_not_answer_hold_up_no_other_service() -> None:
    looked: list[str] = []
    cluster, _ = _controller(lambda observed, now: Plan())
    silent = asyncio.Event()

    class Slow(_Fleet):
        asked = 0

        async def ask(self, pods: Iterable[Object]) -> Any:
            self.asked += 1
            if self.asked <= 4:
                await silent.wait()
            return {}, {}

    def reconcile(observed: Observed, now: datetime) -> Plan:
        looked.append(observed.service["metadata"]["name"])
        return Plan()

    fleet = Slow(cluster, {})
    controller = Controller(cluster, fleet, reconcile, workers=2)
    task = asyncio.create_task(controller.run())
    for number in range(4):
        cluster.queue.put_nowait(Key("default", f"silent-{number}"))
    await until(lambda: fleet.asked == 4)
    cluster.queue.put_nowait(KEY)
    await until(lambda: looked == ["qwen"])
    silent.set()
    await until(lambda: len(looked) == 5)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
