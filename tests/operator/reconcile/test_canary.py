"""Canaries on a fake cluster, with routers that count what their configuration lets them."""

from __future__ import annotations

import copy
import math
from datetime import timedelta
from typing import Any

import pytest
from operator_support.canaries import CANARY, Counted, change, lose_abort, run_losing_statuses, run_until
from operator_support.mini_cluster import service

from blade_operator.model import pods as podutil
from blade_operator.model.plan import Plan


@pytest.fixture
def cluster() -> Counted:
    running = Counted(service({"replicas": 4, "rollout": {"canary": CANARY}}))
    running.converge()
    assert running.status == {}, "a first revision replaces nobody"
    return running


def test_a_good_revision_gets_to_all_requests_step_by_step(cluster: Counted) -> None:
    old, new = change(cluster)
    assert cluster.weights == {new: 0, old: 100}, "before its engines there is the weight that they get"
    seen: list[float] = []
    for _ in range(60):
        weight = cluster.weights.get(new, 100)
        if not seen or seen[-1] != weight:
            seen.append(weight)
        if 0 < weight < 100:
            assert cluster.ready(new) >= math.ceil(4 * weight / 100)
        assert len(cluster.engine_pods) <= 5
        assert sum(map(podutil.is_ready, cluster.engine_pods)) >= 4
        cluster.turn()
    assert seen == [0, 5, 25, 50, 100]
    cluster.converge()
    assert (cluster.ready(new), cluster.ready(old), cluster.status) == (4, 0, {})
    assert cluster.condition("Ready")["status"] == "True"
    shares = [event.message for event in cluster.events if event.reason == "CanaryStep"]
    assert shares == [f"revision {new} gets {share} % of the requests" for share in (5, 25, 50)]


def test_a_bad_revision_gets_nothing_any_more_and_is_not_tried_again(cluster: Counted) -> None:
    old, new = change(cluster)
    cluster.bad[new] = 0.05
    run_until(cluster, "Aborted")
    assert cluster.weights == {new: 0, old: 100}
    reason = cluster.condition("RolloutAborted")["message"]
    assert f"requests failed (5.0%), of revision {old} 0 of" in reason or "requests failed (4." in reason
    for _ in range(30):
        cluster.turn()
    assert (cluster.ready(new), cluster.ready(old)) == (0, 4)
    assert cluster.status == {"revision": new, "stable": old, "phase": "Aborted"}
    assert cluster.condition("RolloutAborted")["message"] == reason
    assert (cluster.condition("Ready")["status"], cluster.condition("Ready")["reason"]) == ("False", "RolloutAborted")
    assert cluster.condition("Progressing")["reason"] == "RolloutAborted"
    assert cluster.service["status"]["phase"] == "Degraded"
    assert cluster.condition("Stalled")["status"] == "True"
    assert [event.type for event in cluster.events if event.reason == "RolloutAborted"] == ["Warning"]
    assert cluster.plan() == Plan(requeue_after=cluster.plan().requeue_after), "nothing is written any more"
    cluster.edit(replicas=0)
    cluster.converge()
    cluster.edit(replicas=2)
    cluster.converge()
    assert (cluster.ready(new), cluster.ready(old)) == (0, 2), "also after a sleep"
    assert cluster.weights == {new: 0, old: 100}


def test_a_slow_revision_is_aborted_with_its_numbers(cluster: Counted) -> None:
    _, new = change(cluster)
    cluster.slow[new] = 1.5
    run_until(cluster, "Aborted")
    assert "TTFT is 1.50 times as long" in cluster.condition("RolloutAborted")["message"]


def test_another_spec_after_an_abort_is_tried_against_the_stable_revision(cluster: Counted) -> None:
    old, bad = change(cluster)
    cluster.bad[bad] = 0.5
    run_until(cluster, "Aborted")
    cluster.edit(engine={"maxNumSeqs": 16})
    cluster.turn()
    new = cluster.current()
    assert cluster.status == {"revision": new, "stable": old, "phase": "Waiting"}
    assert cluster.condition("RolloutAborted") == {}
    for _ in range(60):
        assert cluster.weights.get(bad, 0) == 0
        cluster.turn()
    cluster.converge()
    assert (cluster.ready(new), cluster.ready(old), cluster.ready(bad)) == (4, 0, 0)


@pytest.mark.parametrize("phase", ["Waiting", "Running", "Aborted"])
def test_going_back_withdraws_the_canary(cluster: Counted, phase: str) -> None:
    old, new = change(cluster)
    cluster.bad[new] = 0.5 if phase == "Aborted" else 0.0
    run_until(cluster, phase)
    cluster.edit(engine={})
    for _ in range(20):
        cluster.turn()
        assert cluster.weights.get(new, 0) == 0
    cluster.converge()
    assert (cluster.current(), cluster.ready(old), cluster.ready(new), cluster.status) == (old, 4, 0, {})
    assert (cluster.weights, cluster.condition("Ready")["status"]) == ({}, "True")


def test_a_revision_that_never_gets_ready_waits_and_the_stable_one_serves(cluster: Counted) -> None:
    old, new = change(cluster)
    for _ in range(40):
        cluster.turn(ready=False)
        assert cluster.weights == {new: 0, old: 100}
        assert cluster.ready(old) == 4
    assert cluster.status["phase"] == "Waiting"
    progress = cluster.condition("Progressing")
    assert (progress["reason"], progress["message"]) == (
        "Canary",
        f"revision {new} waits for engines (0 ready) and has 0 % of the requests, {old} the others",
    )


@pytest.mark.parametrize("why", ["silent", "few"])
def test_without_enough_numbers_it_stays_at_its_step(cluster: Counted, why: str) -> None:
    _, new = change(cluster)
    run_until(cluster, "Running")
    cluster.silent = why == "silent"
    for _ in range(50):
        cluster.now += timedelta(minutes=5)
        cluster.reconcile()
    assert (cluster.status["phase"], cluster.weights[new]) == ("Running", 5)


def test_a_clock_that_jumps_back_neither_aborts_nor_steps_on(cluster: Counted) -> None:
    _, new = change(cluster)
    run_until(cluster, "Running")
    cluster.now -= timedelta(days=400)
    for _ in range(10):
        cluster.turn()
    assert (cluster.status["phase"], cluster.weights[new]) == ("Running", 5)


def test_an_operator_killed_before_it_writes_the_status_goes_on(cluster: Counted) -> None:
    """The first status of each phase is lost, once: it takes that step again, and then the next ones."""
    old, new = change(cluster)
    assert run_losing_statuses(cluster) >= {("Running", 5), ("Running", 25), ("Running", 50), ("Promoting", 0)}
    cluster.converge()
    assert (cluster.ready(new), cluster.ready(old)) == (4, 0)


def test_an_abort_is_not_forgotten_by_an_operator_killed_before_it_writes_the_status(cluster: Counted) -> None:
    old, new = change(cluster)
    cluster.bad[new] = 0.2
    reason = lose_abort(cluster)
    cluster.counts = {}
    cluster.turn()
    assert cluster.status["phase"] == "Aborted"
    assert cluster.condition("RolloutAborted")["message"] == reason
    assert cluster.weights == {new: 0, old: 100}


def test_without_a_canary_any_more_the_revision_is_rolled_out(cluster: Counted) -> None:
    old, new = change(cluster)
    cluster.bad[new] = 0.5
    run_until(cluster, "Aborted")
    cluster.edit(rollout={})
    cluster.converge()
    assert (cluster.ready(new), cluster.ready(old), cluster.status, cluster.weights) == (4, 0, {}, {})


def test_it_grows_and_shrinks_with_the_service(cluster: Counted) -> None:
    old, new = change(cluster)
    run_until(cluster, "Running")
    cluster.edit(replicas=8)
    for _ in range(4):
        cluster.turn(0.0)
    assert (cluster.ready(new), cluster.ready(old)) == (1, 8)
    cluster.edit(replicas=2)
    for _ in range(4):
        cluster.turn(0.0)
    assert (cluster.ready(new), cluster.ready(old)) == (1, 2)
    assert cluster.weights == {new: 5, old: 95}


def test_one_engine_beside_one(cluster: Counted) -> None:
    cluster.edit(replicas=1)
    cluster.converge()
    old, new = change(cluster)
    for _ in range(60):
        assert sum(map(podutil.is_ready, cluster.engine_pods)) >= 1
        assert len(cluster.engine_pods) <= 2
        cluster.turn()
    cluster.converge()
    assert (cluster.ready(new), cluster.ready(old)) == (1, 0)


def test_an_invalid_spec_in_the_store_does_not_forget_the_canary(cluster: Counted) -> None:
    _, new = change(cluster)
    run_until(cluster, "Running")
    valid = copy.deepcopy(cluster.service["spec"])
    cluster.service["spec"]["model"]["uri"] = "nonsense"
    cluster.turn()
    assert (cluster.status["phase"], cluster.weights[new]) == ("Running", 5)
    cluster.service["spec"] = valid
    cluster.turn()
    assert cluster.weights[new] == 5


@pytest.mark.parametrize(
    "found", ["x", {}, {"revision": 1}, {"revision": "a", "stable": "a", "phase": "Running"}, {"weight": "much"}]
)
def test_a_status_that_somebody_spoilt_is_none(cluster: Counted, found: Any) -> None:
    cluster.service["status"]["canary"] = found
    cluster.turn()
    assert cluster.status == {}


def test_a_pause_takes_no_step_and_keeps_the_share_and_an_abort_does_not_wait_for_it(cluster: Counted) -> None:
    old, new = change(cluster)
    run_until(cluster, "Running")
    cluster.edit(rollout={"canary": CANARY, "paused": True})
    for _ in range(20):
        cluster.turn()
    assert (cluster.weights, cluster.ready(new)) == ({new: 5, old: 95}, 1)
    cluster.bad[new] = 0.2
    for _ in range(20):
        cluster.turn()
    assert cluster.status["phase"] == "Aborted"
    assert (cluster.ready(new), cluster.ready(old)) == (0, 4)


def test_a_canary_does_not_begin_while_the_change_is_paused(cluster: Counted) -> None:
    cluster.edit(rollout={"canary": CANARY, "paused": True})
    old, new = change(cluster)
    for _ in range(10):
        cluster.turn()
    assert (cluster.ready(new), cluster.ready(old)) == (0, 4)
    cluster.edit(rollout={"canary": CANARY})
    run_until(cluster, "Running")
    assert cluster.weights == {new: 5, old: 95}


def test_a_long_step_is_no_lack_of_progress(cluster: Counted) -> None:
    cluster.edit(rollout={"canary": {**CANARY, "interval": "10h"}})
    _, new = change(cluster)
    run_until(cluster, "Running")
    for _ in range(30):
        cluster.turn(900.0)
    assert (cluster.status["phase"], cluster.weights[new]) == ("Running", 5)
    assert "failed" not in cluster.service["status"]["revision"]


def test_a_revision_that_is_not_ready_within_the_deadline_is_rolled_back(cluster: Counted) -> None:
    old, new = change(cluster)
    for _ in range(30):
        cluster.turn(120.0, ready=False)
    assert cluster.service["status"]["revision"]["failed"] == new
    assert (cluster.ready(old), cluster.status, cluster.weights) == (4, {}, {})
    assert all(podutil.revision(pod) == old for pod in cluster.engine_pods)
    for _ in range(5):
        cluster.turn()
    assert cluster.ready(old) == len(cluster.engine_pods) == 4


def test_an_aborted_canary_is_not_rolled_back_for_want_of_progress(cluster: Counted) -> None:
    _, new = change(cluster)
    cluster.bad[new] = 0.5
    run_until(cluster, "Aborted")
    for _ in range(10):
        cluster.turn(1800.0)
    assert cluster.status["phase"] == "Aborted"
    assert "failed" not in cluster.service["status"]["revision"]
    assert cluster.condition("RolloutAborted")["status"] == "True"
