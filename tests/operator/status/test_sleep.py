"""What the status says of a service that sleeps at zero engines, wakes, or fails to."""

from __future__ import annotations

import pytest
from operator_support.sleepy import Sleepy

from blade_operator.spec import columns
from blade_operator.status.events.transitions import transitions


def test_a_service_that_sleeps_is_ready_for_it_answers_requests() -> None:
    cluster = Sleepy()
    assert (cluster.phase, cluster.condition("Ready")[:2]) == ("Ready", ("True", "Ready"))
    cluster.fall_asleep()
    message = "no request for 60 s: the next one wakes it"
    assert cluster.condition("Ready") == ("True", "Sleeping", message)
    assert cluster.condition("WorkersReady") == ("False", "Sleeping", message)
    assert cluster.condition("RouterReady")[0] == "True"
    assert cluster.condition("Degraded")[0] == "False"
    assert cluster.condition("Progressing")[:2] == ("False", "Complete")
    assert cluster.condition("Stalled")[0] == "False"
    assert cluster.phase == "Sleeping"
    row = dict(columns(cluster.service))
    assert (row["READY"], row["REASON"], row["DESIRED"], row["READY#"]) == ("True", "Sleeping", "0", "0")


def test_while_it_wakes_it_says_what_the_engine_does_and_is_ready_all_the_time() -> None:
    cluster = Sleepy()
    cluster.fall_asleep()
    cluster.demand()
    cluster.reconcile()
    cluster.reconcile()
    cluster.run_controllers()
    cluster.reconcile()
    assert cluster.condition("Ready")[:2] == ("True", "Waking")
    assert cluster.condition("WorkersReady")[:2] == ("False", "Waking")
    assert cluster.condition("Ready")[2].startswith("0 of 1 engines ready")
    assert cluster.condition("Progressing")[:2] == ("True", "Starting")
    assert cluster.phase == "Waking"
    cluster.bring_up()
    cluster.reconcile()
    assert cluster.condition("Ready") == ("True", "Ready", "1 of 1 engines ready")
    assert cluster.phase == "Ready"


def test_each_step_has_an_event_and_the_last_one_says_how_long_it_took() -> None:
    cluster = Sleepy()
    assert cluster.reasons("Sleeping", "Waking", "Woke") == []
    cluster.fall_asleep()
    cluster.demand()
    cluster.step()
    assert cluster.reasons("Sleeping", "Waking", "Woke") == ["Sleeping", "Waking", "Woke"]
    messages = {event.reason: event.message for event in cluster.events}
    assert messages["Sleeping"] == "no request for 60 s: the next one wakes it"
    assert messages["Woke"].startswith("an engine is ready after ")
    assert {event.type for event in cluster.events if event.reason in ("Sleeping", "Waking", "Woke")} == {"Normal"}
    cluster.reconcile()
    assert len(cluster.reasons("Sleeping", "Waking", "Woke")) == 3


def test_an_event_without_the_decision_says_no_time() -> None:
    workers = {"type": "WorkersReady", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    before = {"conditions": [workers | {"status": "False", "reason": "Waking"}]}
    after = {"conditions": [workers | {"status": "True", "reason": "AllReady"}]}
    assert [event.message for event in transitions(before, after)] == ["an engine is ready"]


def test_several_engines_at_once_are_ready_with_the_first() -> None:
    cluster = Sleepy()
    cluster.fall_asleep()
    cluster.demand(count=17)
    cluster.reconcile()
    cluster.reconcile()
    cluster.run_controllers()
    first, *others = cluster.engine_pods
    assert others
    cluster.reconcile()
    cluster.become_ready(first)
    cluster.reconcile()
    assert cluster.condition("Ready")[:2] == ("True", "Ready")
    assert cluster.condition("WorkersReady")[:2] == ("True", "SomeReady")


def test_one_that_fails_to_wake_is_not_ready_and_says_why() -> None:
    cluster = Sleepy()
    cluster.fall_asleep()
    cluster.demand()
    cluster.reconcile()
    cluster.reconcile()
    cluster.run_controllers()
    cluster.reconcile()
    [engine] = cluster.engine_pods
    for _ in range(3):
        cluster.terminate_container(engine, "engine", 1, "no space left on device")
    cluster.reconcile()
    status, reason, message = cluster.condition("Ready")
    assert (status, reason) == ("False", "CrashLoopBackOff")
    assert "no space left on device" in message
    assert cluster.phase == "Failed"


@pytest.mark.parametrize("waking", [False, True])
def test_without_a_router_nobody_would_wake_it(waking: bool) -> None:
    cluster = Sleepy()
    cluster.fall_asleep()
    if waking:
        cluster.demand()
        cluster.reconcile()
        cluster.reconcile()
    cluster.pods = [pod for pod in cluster.pods if pod["metadata"]["name"] not in cluster.routers]
    cluster.reconcile()
    assert cluster.condition("Ready")[:2] == ("False", "RouterStarting")
    assert cluster.phase not in ("Sleeping", "Waking")


def test_zero_engines_by_hand_are_another_thing() -> None:
    cluster = Sleepy({"mode": "External"}, replicas=0)
    assert cluster.condition("Ready")[:2] == ("False", "ScaledToZero")
    assert cluster.phase == "ScaledToZero"
    assert not cluster.plan().wakes_on_demand


def test_nothing_is_written_while_it_sleeps() -> None:
    cluster = Sleepy()
    cluster.fall_asleep()
    cluster.steps(60)
    before = cluster.statuses
    cluster.steps(500)
    assert cluster.statuses == before
