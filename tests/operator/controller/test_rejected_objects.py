"""Objects that the cluster rejects, alters or fails to take: what else is done, and when they are tried again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import datetime

import pytest
from operator_support.apiserver import Clock
from operator_support.local import until
from operator_support.recorded import KEY, named, recorded, state

from blade_operator import backoff
from blade_operator.controller import attempts
from blade_operator.model.objects import Ref
from blade_operator.model.observed import Observed
from blade_operator.model.plan import Plan, Prune


@pytest.fixture
def no_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off without a delay."""
    monkeypatch.setattr(backoff, "BASE", 0.0)


@pytest.mark.usefixtures("no_back_off")
async def test_an_object_the_cluster_rejects_stops_nothing_else_and_the_next_reconcile_knows() -> None:
    seen: list[Mapping[Ref, str]] = []
    plan = Plan(apply=[named("Deployment", "bad"), named("Service", "good")], status={"phase": "Pending"})

    def reconcile(observed: Observed, now: datetime) -> Plan:
        seen.append(observed.rejected)
        return plan

    cluster, controller = recorded(reconcile)
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
        return Plan(apply=[named("Deployment", "bad")])

    cluster, controller = recorded(reconcile)
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
        return Plan(apply=[named("Deployment", "bad")])

    cluster, controller = recorded(reconcile)
    cluster.refused["bad"] = "exceeded quota"
    task = asyncio.create_task(controller.run())
    cluster.queue.put_nowait(KEY)
    await until(lambda: seen[:3] == [0, 1, 1])
    assert "default/qwen: Deployment bad is refused: exceeded quota" in caplog.text
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_rejected_object_is_not_applied_at_every_reconcile_unless_it_changes() -> None:
    desired = {**named("Deployment", "bad"), "spec": {"replicas": 1}}
    cluster, controller = recorded(lambda observed, now: Plan(apply=[desired]), {"pod-1": state(running=1)})
    cluster.refused["bad"] = "exceeded quota"
    delays = [await controller.reconcile(KEY) for _ in range(5)]
    assert cluster.calls.count(("apply", "bad")) == 1
    assert all(seconds is not None and seconds <= 1.2 * backoff.BASE for seconds in delays)
    desired = {**desired, "spec": {"replicas": 2}}
    await controller.reconcile(KEY)
    assert cluster.calls.count(("apply", "bad")) == 2


async def test_an_object_the_cluster_alters_is_not_applied_at_every_reconcile() -> None:
    """A webhook that rewrites images, for one: the observed object never equals the desired one."""
    desired = [named("Deployment", "altered")]
    cluster, controller = recorded(lambda observed, now: Plan(apply=desired), {"pod-1": state(running=1)})
    for _ in range(5):
        await controller.reconcile(KEY)
    assert cluster.calls.count(("apply", "altered")) == 1
    desired.clear()  # it is as desired after all ...
    await controller.reconcile(KEY)
    desired.append(named("Deployment", "altered"))  # ... until somebody changes it
    await controller.reconcile(KEY)
    assert cluster.calls.count(("apply", "altered")) == 2


async def test_what_a_webhook_adds_again_and_again_is_not_removed_at_every_reconcile() -> None:
    prune = Prune(Ref("Deployment", "default", "d"), ("/spec/template/spec/containers/1",))
    cluster, controller = recorded(lambda observed, now: Plan(prune=[prune]), {"pod-1": state(running=1)})
    cluster.refused["d"] = "the sidecar is required"
    for _ in range(5):
        await controller.reconcile(KEY)
    assert cluster.calls == [("prune", "d")]


def test_rejected_objects_are_reattempt_with_exponential_back_off_up_to_a_minute() -> None:
    clock = Clock()
    attempt = attempts.Attempts(clock)
    obj = named("Deployment", "bad")
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
    plan = Plan(apply=[named("Secret", "s"), named("Role", "r"), named("Service", "x")], status={"phase": "Ready"})
    cluster, controller = recorded(lambda observed, now: plan)
    cluster.failing = "s"
    with pytest.raises(RuntimeError, match="the API is away"):
        await controller.reconcile(KEY)
    assert ("applied", "r") in cluster.calls
    assert ("apply", "x") not in cluster.calls
    assert ("status", "Ready") not in cluster.calls
