"""The control loop around reconcile: what is observed goes in, what is planned is carried out, failures come again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import pytest
from operator_support.local import until

from blade_operator import watch
from blade_operator.fleet import Fleet
from blade_operator.objects import Key, Object, Ref
from blade_operator.observed import Observed
from blade_operator.plan import DrainPod, EventRecord, Plan
from blade_operator.watch import Controller
from blade_protocol.fetch import FetchProgress
from blade_protocol.state import EngineState

KEY = Key("default", "qwen")
POD: Object = {"kind": "Pod", "metadata": {"name": "pod-1", "namespace": "default"}}


class _Cluster:
    """Records every call, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.queue: asyncio.Queue[Key] = asyncio.Queue()
        self.gone = False

    async def changes(self) -> AsyncIterator[Key]:
        while True:
            yield await self.queue.get()

    async def observe(self, key: Key) -> Observed | None:
        return None if self.gone else Observed({"metadata": {"name": key.name}}, pods=(POD,))

    async def apply(self, obj: Object) -> None:
        self.calls.append(("apply", obj["metadata"]["name"]))

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
        apply=[{"metadata": {"name": "new"}}],
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
