"""The progress deadline, and the rollback that follows, on a fake cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object, Ref
from blade_operator.model.plan import Plan
from blade_protocol.fetch import FetchProgress
from blade_protocol.labels import RESTARTED_AT

FLAG = "blade_llm_server: unknown flag --no_such_flag"
BAD = {"extraArgs": ["--no_such_flag"]}


def made(replicas: int = 2, **rollout: Any) -> MiniCluster:
    """A service whose engines are all ready."""
    cluster = MiniCluster(service({"replicas": replicas, "rollout": rollout}))
    cluster.converge()
    return cluster


def revision(cluster: MiniCluster) -> Object:
    found: Object = cluster.service["status"]["revision"]
    return found


def condition(cluster: MiniCluster, kind: str) -> Object:
    return next(each for each in cluster.service["status"]["conditions"] if each["type"] == kind)


def ready_engines(cluster: MiniCluster) -> int:
    return sum(map(podutil.is_ready, cluster.engine_pods))


def run(cluster: MiniCluster, rounds: int = 12, bad: str = "") -> int:
    """Operator and controllers in turn, engines of ``bad`` crash; the fewest engines that were ready meanwhile."""
    lowest = ready_engines(cluster)
    for _ in range(rounds):
        cluster.reconcile()
        cluster.run_controllers()
        lowest = min(lowest, ready_engines(cluster))
        cluster.remove_terminating_pods()
        for pod in cluster.pods:
            if bad and podutil.revision(pod) == bad:
                cluster.terminate_container(pod, "engine", 2, FLAG)
            else:
                cluster.become_ready(pod)
    return lowest


def break_it(cluster: MiniCluster) -> tuple[str, str]:
    """Roll out what never becomes ready, up to the deadline; the revisions before and after."""
    good = revision(cluster)["current"]
    cluster.edit(engine=BAD)
    cluster.reconcile()
    bad = revision(cluster)["current"]
    run(cluster, bad=bad)
    return good, bad


def engines(cluster: MiniCluster) -> dict[str, int]:
    return {
        ref.name.rpartition("-")[2]: obj["spec"]["replicas"]
        for ref, obj in cluster.objects.items()
        if ref.kind == "Deployment" and "-engine-" in ref.name
    }


def test_a_revision_without_progress_is_rolled_back_at_the_deadline_and_the_spec_stays() -> None:
    cluster = made()
    good, bad = break_it(cluster)
    assert engines(cluster) == {good: 2, bad: 1}
    assert revision(cluster) | {"progressedAt": ""} == {
        "current": bad, "previous": good, "updating": True, "outdated": False, "stable": good, "progressedAt": "",
    }  # fmt: skip
    spec = dict(cluster.service["spec"])
    cluster.now += timedelta(minutes=31)
    assert run(cluster, bad=bad) == 2
    assert engines(cluster) == {good: 2}
    assert revision(cluster) == {
        "current": bad, "previous": good, "updating": False, "outdated": False, "stable": good, "failed": bad,
    }  # fmt: skip
    assert cluster.service["spec"] == spec
    progressing = condition(cluster, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "ProgressDeadlineExceeded")
    # The engines that failed are gone, and the reason is still there.
    for words in (f"revision {bad} made no progress", FLAG.removeprefix("blade_llm_server: "), f"{good} runs instead"):
        assert words in progressing["message"] or words in str(cluster.service["status"]["failures"])
    assert (condition(cluster, "Ready")["status"], condition(cluster, "WorkersReady")["status"]) == ("False", "True")
    assert condition(cluster, "Stalled")["status"] == "True"
    assert cluster.service["status"]["phase"] == "Degraded"
    assert cluster.service["status"]["updatedReplicas"] == 0
    warnings = [event for event in cluster.events if event.reason == "ProgressDeadlineExceeded"]
    assert [event.type for event in warnings] == ["Warning"]
    undone = [(event.type, event.message) for event in cluster.events if event.reason == "RolledBack"]
    assert undone == [("Warning", f"revision {bad} did not become ready: {good} runs instead")]
    assert cluster.plan() == Plan(requeue_after=cluster.plan().requeue_after)


@pytest.mark.parametrize("how", ["spec", "restart"])
def test_a_revision_that_was_rolled_back_is_tried_again_when_the_spec_or_the_annotation_changes(how: str) -> None:
    cluster = made()
    _, bad = break_it(cluster)
    cluster.now += timedelta(minutes=31)
    run(cluster, bad=bad)
    if how == "spec":
        cluster.edit(engine={"maxNumSeqs": 8})
    else:
        cluster.service["metadata"]["annotations"] = {RESTARTED_AT: "2026-01-02"}
    cluster.converge()
    again = revision(cluster)["current"]
    assert again != bad
    assert engines(cluster) == {again: 2}
    assert revision(cluster)["stable"] == again
    assert "failed" not in revision(cluster)
    assert condition(cluster, "Ready")["status"] == "True"


def test_without_rollback_the_deadline_is_a_condition_and_late_progress_takes_it_back() -> None:
    cluster = made(rollback="Off")
    good, bad = break_it(cluster)
    cluster.now += timedelta(minutes=31)
    run(cluster, bad=bad)
    assert engines(cluster) == {good: 2, bad: 1}
    assert condition(cluster, "Progressing")["reason"] == "ProgressDeadlineExceeded"
    assert FLAG.partition(": ")[2] in condition(cluster, "Progressing")["message"] or "unknown" not in FLAG
    cluster.converge()  # whatever it was has been mended outside
    assert engines(cluster) == {bad: 2}
    assert condition(cluster, "Progressing")["reason"] == "Complete"


def test_setting_rollback_to_off_tries_the_revision_again() -> None:
    cluster = made()
    good, bad = break_it(cluster)
    cluster.now += timedelta(minutes=31)
    run(cluster, bad=bad)
    cluster.edit(rollout={**cluster.service["spec"]["rollout"], "rollback": "Off"})
    run(cluster, 3, bad=bad)
    assert engines(cluster) == {good: 2, bad: 1}
    assert condition(cluster, "Progressing")["reason"] != "ProgressDeadlineExceeded"


def test_the_first_revision_has_no_deadline_and_says_what_fails() -> None:
    cluster = MiniCluster(service({"engine": BAD}))
    cluster.reconcile()
    only = revision(cluster)["current"]
    run(cluster, bad=only)
    cluster.now += timedelta(days=1)
    run(cluster, bad=only)
    assert engines(cluster) == {only: 1}
    assert condition(cluster, "Progressing")["reason"] == "Stalled"
    assert cluster.service["status"]["phase"] == "Failed"
    assert not {"failed", "progressedAt", "stable"} & {*revision(cluster)}


def test_a_change_of_what_was_never_ready_has_a_deadline_and_nowhere_to_go_back_to() -> None:
    cluster = MiniCluster(service({"engine": BAD}))
    cluster.reconcile()
    first = revision(cluster)["current"]
    run(cluster, bad=first)
    cluster.edit(engine={"extraArgs": ["--no_other_flag"]})
    for _ in range(8):
        cluster.reconcile()
        cluster.run_controllers()
        cluster.remove_terminating_pods()
    second = revision(cluster)["current"]
    cluster.now += timedelta(minutes=31)
    cluster.reconcile()
    assert second in engines(cluster)
    assert "failed" not in revision(cluster)


def test_scaling_a_revision_that_was_ready_has_no_deadline() -> None:
    cluster = made()
    good = revision(cluster)["current"]
    cluster.edit(replicas=4)
    cluster.reconcile()
    cluster.run_controllers()
    cluster.now += timedelta(days=1)
    cluster.reconcile()
    assert engines(cluster) == {good: 4}
    assert "progressedAt" not in revision(cluster)
    assert condition(cluster, "Progressing")["reason"] == "Starting"


def test_each_engine_that_becomes_ready_starts_the_time_anew() -> None:
    cluster = made(3)
    cluster.edit(engine={"maxNumSeqs": 8})
    cluster.reconcile()
    new = revision(cluster)["current"]
    for _ in range(3):
        cluster.now += timedelta(minutes=29)
        for _ in range(3):
            cluster.reconcile()
            cluster.run_controllers()
            cluster.remove_terminating_pods()
        fresh = [pod for pod in cluster.engine_pods if podutil.revision(pod) == new and not podutil.is_ready(pod)]
        cluster.become_ready(fresh[0])
        cluster.reconcile()
    cluster.converge()
    assert engines(cluster) == {new: 3}


def test_an_engine_that_is_ready_off_and_on_makes_no_progress() -> None:
    cluster = made(3)
    good = revision(cluster)["current"]
    cluster.edit(engine={"maxNumSeqs": 8})
    for _ in range(4):
        cluster.reconcile()
        cluster.run_controllers()
        cluster.remove_terminating_pods()
    new = revision(cluster)["current"]
    flapping = next(pod for pod in cluster.engine_pods if podutil.revision(pod) == new)
    for _ in range(4):
        cluster.become_ready(flapping)
        cluster.reconcile()
        cluster.terminate_container(flapping, "engine", 1, "lost its device")
        cluster.reconcile()
        cluster.now += timedelta(minutes=10)
    run(cluster, bad=new)
    assert revision(cluster)["failed"] == new
    assert engines(cluster) == {good: 3}


def test_a_download_that_goes_on_is_progress_and_one_that_ended_starts_the_time_anew() -> None:
    hub = {"model": {"uri": "hf://Qwen/Qwen2.5-0.5B"}, "replicas": 1}
    cluster = MiniCluster(service(hub))
    cluster.converge()
    cluster.edit(model={"uri": "hf://Qwen/Qwen2.5-7B"})
    cluster.reconcile()
    cluster.run_controllers()
    new = revision(cluster)["current"]
    [pod] = [pod for pod in cluster.engine_pods if podutil.revision(pod) == new]
    pod["status"]["initContainerStatuses"][0] |= {"state": {"running": {}}}
    writes = 0
    for minute in range(90):
        cluster.now += timedelta(minutes=1)
        done = 10 * (minute + 1)
        cluster.downloads = {
            pod["metadata"]["name"]: FetchProgress(model="m", files=1, bytes=1000, bytes_done=done, bytes_per_second=1)
        }
        writes += cluster.reconcile().status is not None
    assert engines(cluster)[new] == 1
    assert writes <= 90 * 10 / 1000 / 0.05 + 4  # each 5 %, and each 30 minutes
    cluster.downloads = {}
    cluster.terminate_container(pod, "fetch", 0)
    cluster.now += timedelta(minutes=1)
    cluster.reconcile()
    cluster.now += timedelta(minutes=29)
    cluster.reconcile()
    assert condition(cluster, "Progressing")["reason"] == "Updating"
    cluster.now += timedelta(minutes=2)
    cluster.reconcile()
    assert condition(cluster, "Progressing")["reason"] == "ProgressDeadlineExceeded"


def test_the_time_does_not_count_while_the_engine_before_drains() -> None:
    cluster = made(1, maxSurge=0, maxUnavailable=1)
    cluster.edit(engine={"maxNumSeqs": 8})
    for _ in range(4):
        cluster.reconcile()
        cluster.now += timedelta(hours=3)
        cluster.run_controllers()  # the engine of before terminates, and takes hours for it
    assert "failed" not in revision(cluster)
    assert condition(cluster, "Progressing")["reason"] in ("Updating", "Starting")
    cluster.converge()
    assert revision(cluster)["stable"] == revision(cluster)["current"]


@pytest.mark.parametrize("jump", [timedelta(days=-400), timedelta(days=-1)])
def test_a_clock_that_is_set_back_starts_the_time_anew(jump: timedelta) -> None:
    cluster = made()
    _, bad = break_it(cluster)
    cluster.now += jump
    run(cluster, 2, bad=bad)
    cluster.now += timedelta(minutes=31)
    run(cluster, bad=bad)
    assert revision(cluster)["failed"] == bad


def test_the_revision_to_go_back_to_is_kept_beyond_the_history_limit() -> None:
    cluster = made(1, maxSurge=0, maxUnavailable=1, revisionHistoryLimit=0)
    good, bad = break_it(cluster)
    assert engines(cluster) == {bad: 1}  # with no room for two, nothing of before is left
    cluster.now += timedelta(minutes=31)
    run(cluster, bad=bad)
    assert engines(cluster) == {good: 1}
    assert ready_engines(cluster) == 1


@pytest.mark.parametrize("limits", [(1, 0), (0, 1)])
def test_an_operator_killed_after_any_write_of_a_rollback_ends_in_the_same_state(limits: tuple[int, int]) -> None:
    surge, unavailable = limits
    cluster = made(2, maxSurge=surge, maxUnavailable=unavailable)
    good, bad = break_it(cluster)
    cluster.now += timedelta(minutes=31)
    floor = min(ready_engines(cluster), 2 - unavailable)
    for killed in (0, 1, 2, 0, 2):
        plan = cluster.plan()
        # The status is written last: an operator that is killed before has done some of the rest.
        deployments = [obj for obj in plan.apply if obj["kind"] == "Deployment"]
        cluster.objects |= {Ref.of(obj): cluster._as_server(obj) for obj in deployments[:killed]}
        cluster.run_controllers()
        assert ready_engines(cluster) >= floor
        cluster.remove_terminating_pods()
    assert run(cluster, 10, bad=bad) >= floor
    assert engines(cluster) == {good: 2}
    assert ready_engines(cluster) == 2
    assert revision(cluster)["failed"] == bad


def test_states_of_engines_are_not_needed() -> None:
    """An engine that does not respond is ready or not by its pod alone."""
    cluster = made()
    cluster.engines = {name: msgspec.structs.replace(state, ready=False) for name, state in cluster.engines.items()}
    cluster.reconcile()
    assert revision(cluster)["stable"] == revision(cluster)["current"]
