"""Canaries that get copies of requests before they get any: phase by phase on a fake cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from operator_support.canaries import CANARY, Counted, change, lose_abort, run_losing_statuses, run_until
from operator_support.mini_cluster import service

from blade_operator.model import pods as podutil

SHADOWED = {**CANARY, "shadow": {"share": 10, "minRequests": 100}}


def running(replicas: int = 4, **canary: Any) -> Counted:
    cluster = Counted(service({"replicas": replicas, "rollout": {"canary": SHADOWED | canary}}))
    cluster.converge()
    return cluster


def progress(cluster: Counted) -> str:
    condition = cluster.condition("Progressing")
    assert condition["reason"] == "Canary"
    return str(condition["message"])


def test_a_good_revision_gets_copies_first_and_then_requests() -> None:
    cluster = running()
    old, new = change(cluster)
    assert (cluster.status["phase"], cluster.shadow) == ("Waiting", None), "not before its engines are ready"
    seen: list[tuple[str, float]] = []
    for _ in range(80):
        now = cluster.status.get("phase", ""), cluster.weights.get(new, 100)
        if now not in seen:
            seen.append(now)
        if cluster.status.get("phase") == "Shadowing":
            assert cluster.shadow == {"revision": new, "share": 10}
            assert cluster.weights == {new: 0, old: 100}
            assert (cluster.ready(new), cluster.ready(old)) == (1, 4)
        else:
            assert cluster.shadow is None
        cluster.turn()
    assert seen[:3] == [("Waiting", 0), ("Shadowing", 0), ("Running", 5)]
    assert [weight for phase, weight in seen if phase == "Running"] == [5, 25, 50]
    cluster.converge()
    assert (cluster.ready(new), cluster.ready(old), cluster.status) == (4, 0, {})
    events = {event.reason: event.message for event in reversed(cluster.events)}
    assert events["CanaryShadow"] == f"revision {new} gets copies of requests"
    assert events["CanaryShadowPassed"] == ("100 copies were compared; 90 of 100 greedy requests have the same text")


@pytest.mark.parametrize(("what", "text"), [("bad", "requests failed (50.0%), of revision"), ("slow", "TTFT is 1.50")])
def test_a_bad_revision_gets_no_request_at_all(what: str, text: str) -> None:
    cluster = running(shadow={"share": 25, "minRequests": 400})
    old, new = change(cluster)
    getattr(cluster, what)[new] = {"bad": 0.5, "slow": 1.5}[what]
    for _ in range(60):
        assert cluster.weights == {new: 0, old: 100}
        cluster.turn()
    assert cluster.status == {"revision": new, "stable": old, "phase": "Aborted"}
    reason = cluster.condition("RolloutAborted")["message"]
    assert reason.startswith("as a shadow, before it got any request: ")
    assert text in reason
    assert (cluster.ready(new), cluster.ready(old), cluster.shadow) == (0, 4, None)


def test_other_texts_are_reported_and_abort_nothing() -> None:
    cluster = running(shadow={"minRequests": 100})
    cluster.same = 0.0
    change(cluster)
    run_until(cluster, "Running")
    assert [event.message for event in cluster.events if event.reason == "CanaryShadowPassed"] == [
        "100 copies were compared; 0 of 100 greedy requests have the same text"
    ]


def test_the_condition_says_how_far_it_is_and_seldom_changes() -> None:
    cluster = running(shadow={"share": 1, "minRequests": 200})
    _, new = change(cluster)
    run_until(cluster, "Shadowing")
    said = []
    for _ in range(150):
        cluster.turn(2.0)
        if cluster.status["phase"] == "Shadowing" and progress(cluster) not in said:
            said.append(progress(cluster))
    assert 5 <= len(said) <= 12, said
    assert said[-1].endswith(
        "answers all: 140 of 200 copies are compared; of greedy requests about 90 % have the same text"
    )
    assert new in said[-1]


def test_without_enough_copies_it_waits_and_is_not_rolled_back() -> None:
    cluster = running()
    _, new = change(cluster)
    run_until(cluster, "Shadowing")
    cluster.turn()
    for _ in range(30):
        cluster.now += timedelta(hours=1)  # without a request
        cluster.reconcile()
    assert (cluster.status["phase"], cluster.weights[new]) == ("Shadowing", 0)
    assert "10 of 100 copies are compared" in progress(cluster)
    assert "failed" not in cluster.service["status"]["revision"]


@pytest.mark.parametrize("silent", [True, False])
def test_routers_that_report_no_copies_are_the_reason_that_it_waits(silent: bool) -> None:
    cluster = running()
    cluster.knows_shadows = False
    _, new = change(cluster)
    run_until(cluster, "Shadowing")
    cluster.silent = silent
    for _ in range(20):
        cluster.turn()
    assert (cluster.status["phase"], cluster.weights[new]) == ("Shadowing", 0)
    assert "no router reports copies" in progress(cluster)


def test_an_image_of_the_users_own_gets_no_configuration_that_it_may_not_know() -> None:
    cluster = running()
    cluster.edit(router={"image": "mine:1"})
    cluster.converge()
    change(cluster)
    run_until(cluster, "Shadowing")
    cluster.turn()
    assert cluster.shadow is None
    assert "router.image" in progress(cluster)
    cluster.edit(rollout={"canary": CANARY})
    run_until(cluster, "Running")


def test_engines_that_are_gone_are_waited_for_and_copies_begin_anew() -> None:
    cluster = running(shadow={"minRequests": 1000})
    _, new = change(cluster)
    run_until(cluster, "Shadowing")
    for _ in range(5):
        cluster.turn()
    for pod in cluster.engine_pods:
        if podutil.revision(pod) == new:
            pod["status"]["conditions"] = []
    cluster.turn(ready=False)
    assert (cluster.status["phase"], cluster.shadow) == ("Waiting", None)
    assert "waits for engines (0 ready)" in progress(cluster)
    for _ in range(30):  # the deadline counts
        cluster.turn(120.0, ready=False)
    assert cluster.service["status"]["revision"]["failed"] == new
    assert cluster.shadow is None


def test_an_operator_killed_before_it_writes_the_status_goes_on() -> None:
    """The first status of each phase is lost, once."""
    cluster = running()
    old, new = change(cluster)
    assert run_losing_statuses(cluster) >= {("Shadowing", 0), ("Running", 5), ("Running", 50), ("Promoting", 0)}
    cluster.converge()
    assert (cluster.ready(new), cluster.ready(old)) == (4, 0)


def test_an_abort_of_a_shadow_is_not_forgotten() -> None:
    cluster = running(shadow={"share": 25, "minRequests": 400})
    old, new = change(cluster)
    cluster.bad[new] = 0.5
    reason = lose_abort(cluster)
    cluster.copies, cluster.bad = None, {}
    cluster.turn()
    assert (cluster.status["phase"], cluster.condition("RolloutAborted")["message"]) == ("Aborted", reason)
    assert cluster.weights == {new: 0, old: 100}


def test_going_back_ends_the_copies() -> None:
    cluster = running(shadow={"minRequests": 9000})
    old, new = change(cluster)
    run_until(cluster, "Shadowing")
    cluster.edit(engine={})
    cluster.turn()
    assert (cluster.shadow, cluster.weights.get(new, 0)) == (None, 0)
    cluster.converge()
    assert (cluster.current(), cluster.ready(old), cluster.ready(new), cluster.status) == (old, 4, 0, {})


def test_a_pause_begins_no_copies_and_ends_none() -> None:
    cluster = running()
    _, new = change(cluster)
    cluster.edit(rollout={"canary": SHADOWED, "paused": True})
    for _ in range(5):
        cluster.turn()
    assert cluster.status["phase"] == "Waiting"
    cluster.edit(rollout={"canary": SHADOWED})
    run_until(cluster, "Shadowing")
    cluster.edit(rollout={"canary": SHADOWED, "paused": True})
    for _ in range(30):
        cluster.turn()
    assert (cluster.status["phase"], cluster.weights[new]) == ("Shadowing", 0)
    assert cluster.shadow is not None
    cluster.edit(rollout={"canary": SHADOWED})
    cluster.turn()
    assert cluster.status["phase"] == "Running"


@pytest.mark.parametrize(("replicas", "share"), [(1, 50), (4, 25), (10, 10), (30, 6), (200, 5)])
def test_copies_load_its_engines_no_more_than_the_others_are(replicas: int, share: int) -> None:
    cluster = running(replicas, shadow={"share": 50, "minRequests": 9000})
    change(cluster)
    run_until(cluster, "Shadowing")
    shadow = cluster.shadow
    assert shadow is not None
    assert shadow["share"] == share


def test_a_service_that_sleeps_meanwhile_begins_anew() -> None:
    cluster = running(shadow={"minRequests": 9000})
    _, new = change(cluster)
    run_until(cluster, "Shadowing")
    cluster.edit(replicas=0)
    cluster.converge()
    assert (cluster.shadow, len(cluster.engine_pods)) == (None, 0)
    cluster.edit(replicas=2)
    run_until(cluster, "Shadowing")
    assert cluster.weights[new] == 0
