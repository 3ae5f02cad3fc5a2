"""The status of a service in common situations, and that it is written only when something has changed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from operator_support.mini_cluster import MiniCluster, engine_state, memory, service
from operator_support.status import condition, make_routers_ready, reconciled_status, starting

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Ref
from blade_operator.spec import columns
from blade_protocol.check import CheckItem

HUB = {"model": {"uri": "hf://Qwen/Qwen2.5-0.5B"}}


def running(spec: dict[str, Any] | None = None) -> MiniCluster:
    cluster = MiniCluster(service(spec))
    cluster.converge()
    return cluster


def test_everything_ready() -> None:
    status = reconciled_status(running({"replicas": 2}))
    assert condition(status, "Ready") == ("True", "Ready", "2 of 2 engines ready")
    assert condition(status, "ModelCached") == ("True", "NoDownload", "file:///models/qwen is read where it is")
    assert condition(status, "PreflightPassed") == ("True", "Passed", "every item passed in 2 pods")
    assert condition(status, "ModelFits") == (
        "True", "Measured", "the KV cache holds 4096 tokens: 4.0 requests of 1024 tokens at once",
    )  # fmt: skip
    assert condition(status, "Progressing")[:2] == ("False", "Complete")
    assert condition(status, "Degraded")[:2] == ("False", "AsExpected")
    assert condition(status, "Reconciling") == ("False", "Complete", "")
    assert condition(status, "Stalled") == ("False", "AsExpected", "")
    assert (status["phase"], status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (
        "Ready",
        2,
        2,
        2,
    )
    assert status["selector"] == "serving.bladellm.io/name=qwen,serving.bladellm.io/role=engine"
    assert status["fit"] == {
        "source": "measured", "revision": status["revision"]["current"], "weights": "1.00Gi", "activations": "64.0Mi",
        "graphs": "96.0Mi",
        "kvCache": "256Mi", "kvTokens": 4096, "contextLength": 1024, "concurrency": "4.0",
    }  # fmt: skip
    assert "failures" not in status


@pytest.mark.parametrize(("gpus", "ranks"), [({"count": 1}, None), ({"count": 4}, 4), ({"tensorParallel": 2}, 2)])
def test_figures_of_several_ranks_say_how_many_have_them(gpus: dict[str, Any], ranks: int | None) -> None:
    assert reconciled_status(running({"engine": {"gpus": gpus}}))["fit"].get("ranks") == ranks


def test_ready_needs_every_replica_first_and_then_lasts_while_one_is_ready() -> None:
    cluster = starting({"replicas": 2})
    make_routers_ready(cluster)
    one, two = cluster.engine_pods
    cluster.become_ready(one)
    assert condition(reconciled_status(cluster), "Ready") == ("False", "EnginesStarting", "1 of 2 engines ready")
    cluster.become_ready(two)
    assert condition(reconciled_status(cluster), "Ready")[0] == "True"
    cluster.terminate_container(one, "engine", 137)
    assert condition(reconciled_status(cluster), "Ready") == ("True", "Ready", "1 of 2 engines ready")
    cluster.terminate_container(two, "engine", 137)
    assert condition(reconciled_status(cluster), "Ready")[:2] == ("False", "CrashLoopBackOff")


def test_ready_needs_a_router() -> None:
    cluster = running()
    [router] = [pod for pod in cluster.pods if podutil.role(pod) == "router"]
    cluster.terminate_container(router, "router", 1, "Traceback\nOSError: address in use")
    status = reconciled_status(cluster)
    assert condition(status, "Ready") == (
        "False", "CrashLoopBackOff",
        f"0 of 1 routers ready; pod {router['metadata']['name']}: router failed (exit 1), restarted 1 time: "
        "OSError: address in use",
    )  # fmt: skip
    assert condition(status, "WorkersReady")[0] == "True"
    assert status["failures"][0]["lastLog"] == "OSError: address in use"


def test_a_killed_engine_is_reported_and_stays_in_the_status_after_it_recovered() -> None:
    cluster = running({"replicas": 2})
    cluster.events.clear()
    pod = cluster.engine_pods[0]
    name = pod["metadata"]["name"]
    cluster.terminate_container(pod, "engine", 137, "", "Error")
    status = reconciled_status(cluster)
    assert status["phase"] == "Degraded"
    assert condition(status, "Degraded") == (
        "True", "CrashLoopBackOff", f"pod {name}: engine was killed by SIGKILL (exit 137), restarted 1 time",
    )  # fmt: skip
    cluster.restart(pod)
    assert condition(reconciled_status(cluster), "Degraded")[:2] == ("True", "Error")
    cluster.become_ready(pod)
    status = reconciled_status(cluster)
    assert (status["phase"], condition(status, "Degraded")[0]) == ("Ready", "False")
    assert status["failures"] == [
        {
            "pod": name, "container": "engine", "reason": "Error", "exitCode": 137, "restarts": 1,
            "message": "engine was killed by SIGKILL (exit 137), restarted 1 time",
        }
    ]  # fmt: skip
    recorded = [event for event in cluster.events if "SIGKILL" in event.message]
    assert [(event.type, event.reason) for event in recorded] == [("Warning", "CrashLoopBackOff")]


@pytest.mark.parametrize(
    ("exit_code", "reason", "message"),
    [
        (137, "OOMKilled", "engine ran out of memory (OOMKilled), restarted 1 time"),
        (139, "Error", "engine was killed by SIGSEGV (exit 139), restarted 1 time"),
        (1, "Error", "engine failed (exit 1), restarted 1 time"),
        (0, "Completed", "engine ended, by itself or after a failed liveness probe (exit 0), restarted 1 time"),
        (255, "Error", "engine failed (exit 255), restarted 1 time"),
        (255, "Unknown", "engine ended, its exit code is unknown, restarted 1 time"),
    ],
)
def test_how_a_container_ended_is_described(exit_code: int, reason: str, message: str) -> None:
    cluster = running()
    cluster.terminate_container(cluster.engine_pods[0], "engine", exit_code, "", reason)
    assert reconciled_status(cluster)["failures"][0]["message"] == message


def test_a_service_that_never_was_valid_is_not_reported_as_scaled_to_zero() -> None:
    cluster = MiniCluster(service({"replicas": -1}))
    status = reconciled_status(cluster)
    assert condition(status, "WorkersReady") == ("False", "InvalidSpec", "no engine is there")
    assert condition(status, "Ready")[1] == "InvalidSpec"


def test_an_unreachable_engine_turns_nothing_false() -> None:
    cluster = running({"replicas": 2})
    before = reconciled_status(cluster)
    cluster.engines.clear()
    assert cluster.reconcile().status is None
    assert reconciled_status(cluster) == before
    fresh = running({"check": {"mode": "Off"}})
    fresh.service["status"] = {}
    fresh.engines.clear()
    status = reconciled_status(fresh)
    assert condition(status, "ModelFits")[0] == "Unknown"
    assert condition(status, "Ready")[0] == "True"


def test_small_moves_of_measured_numbers_are_not_written_and_large_ones_are() -> None:
    cluster = running()
    [pod] = cluster.engine_pods
    name = pod["metadata"]["name"]
    cluster.engines[name] = engine_state(pod, memory(weights=(1 << 30) + (1 << 26)))
    assert cluster.plan().status is None
    cluster.engines[name] = engine_state(pod, memory(weights=2 << 30))
    status = cluster.reconcile().status
    assert status is not None
    assert status["fit"]["weights"] == "2.00Gi"


def test_transition_times_stay_while_the_status_of_a_condition_stays() -> None:
    cluster = starting({"replicas": 2})
    make_routers_ready(cluster)
    one, two = cluster.engine_pods
    times = lambda status, kind: [c["lastTransitionTime"] for c in status["conditions"] if c["type"] == kind]  # noqa: E731
    before = times(reconciled_status(cluster), "Ready")
    cluster.become_ready(one)
    assert times(reconciled_status(cluster), "Ready") == before
    cluster.become_ready(two)
    assert times(reconciled_status(cluster), "Ready") > before


def test_scaled_to_zero_is_reported() -> None:
    cluster = running({"replicas": 0})
    status = reconciled_status(cluster)
    assert condition(status, "Ready") == ("False", "ScaledToZero", "spec.replicas is 0")
    assert status["phase"] == "ScaledToZero"
    assert condition(status, "Degraded")[0] == "False"


def test_pods_that_cannot_start_or_be_scheduled_are_failures() -> None:
    cluster = starting({"replicas": 2})
    one, two = cluster.engine_pods
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "engine:9"'}
    one["status"]["initContainerStatuses"][0]["state"] = {"waiting": waiting}
    two["status"] = {
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "insufficient memory"}
        ]
    }
    failures = {failure["pod"]: failure for failure in reconciled_status(cluster)["failures"]}
    assert failures[one["metadata"]["name"]]["message"] == "image engine:1 cannot be pulled (spec.engine.image)"
    assert failures[two["metadata"]["name"]]["message"] == "cannot be scheduled: insufficient memory"
    assert condition(cluster.service["status"], "Progressing")[1] == "Stalled"


def test_a_start_that_waits_for_terminating_pods_reports_it() -> None:
    cluster = running({"replicas": 2, "rollout": {"maxSurge": 0, "maxUnavailable": 1}})
    for pod in cluster.engine_pods:
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert condition(reconciled_status(cluster), "Progressing") == (
        "True",
        "Starting",
        "0 of 2 engines ready, 2 pods leaving",
    )


def test_draining_engines_are_counted_separately() -> None:
    cluster = running({"replicas": 2})
    cluster.edit(replicas=1)
    for _ in range(3):  # marked, drained, deleted
        cluster.reconcile()
    cluster.run_controllers()
    status = reconciled_status(cluster)
    assert (status["replicas"], status["readyReplicas"], status["drainingReplicas"]) == (1, 1, 1)
    assert condition(status, "Progressing") == ("True", "Draining", "1 pod leaving")


def test_the_url_is_what_the_service_publishes_else_its_name_in_the_cluster() -> None:
    cluster = running()
    assert reconciled_status(cluster)["url"] == "http://qwen-router.team:8080/v1"
    router = cluster.objects[Ref("Service", "team", "qwen-router")]
    router["status"] = {"loadBalancer": {"ingress": [{"ip": "127.0.0.1", "ports": [{"port": 8765}]}]}}
    assert reconciled_status(cluster)["url"] == "http://127.0.0.1:8765/v1"
    router["status"] = {"loadBalancer": {"ingress": [{"ip": "fd00::1"}]}}
    assert reconciled_status(cluster)["url"] == "http://[fd00::1]:8080/v1"


def test_the_url_of_a_service_with_a_certificate_is_https_also_while_its_spec_is_not_valid() -> None:
    cluster = running({"router": {"tls": {"secretName": "certificate"}}})
    assert reconciled_status(cluster)["url"] == "https://qwen-router.team:8080/v1"
    cluster.edit(replicas=-1)
    status = reconciled_status(cluster)
    assert (status["phase"], status["url"]) == ("Invalid", "https://qwen-router.team:8080/v1")


def test_long_texts_and_many_pods_stay_bounded() -> None:
    cluster = starting({"replicas": 40})
    item = CheckItem(name="check_memory_fit", status="FAILED", detail="x" * 900)
    for pod in cluster.engine_pods:
        cluster.check(pod, item, exit_code=1)
    status = reconciled_status(cluster)
    assert (len(status["preflight"]), len(status["failures"])) == (16, 16)


def test_each_transition_is_one_event() -> None:
    cluster = running({"replicas": 2})
    assert [(event.type, event.reason) for event in cluster.events] == [
        ("Normal", "NewRevision"), ("Normal", "ScaledUp"), ("Normal", "Ready"), ("Normal", "Complete"),
    ]  # fmt: skip
    cluster.events.clear()
    cluster.edit(engine={"maxNumSeqs": 8})
    cluster.converge()
    assert [event.reason for event in cluster.events] == [
        "NewRevision", "Updating", "ScaledUp", "ScaledDown", "ScaledUp", "ScaledDown", "Complete",
    ]  # fmt: skip
    cluster.events.clear()
    cluster.edit(replicas=0)
    cluster.converge()
    assert [(event.type, event.reason) for event in cluster.events if event.reason == "ScaledToZero"] == [
        ("Normal", "ScaledToZero")
    ]


def test_columns_read_as_kubectl_prints_them() -> None:
    cluster = running({"replicas": 2})
    reconciled_status(cluster)

    row = columns(cluster.service, wide=True, now=datetime(2026, 1, 1, 0, 5, 10, tzinfo=UTC))
    assert row == [
        ("NAME", "qwen"), ("READY", "True"), ("REASON", "Ready"), ("MODEL", "file:///models/qwen"), ("DESIRED", "2"),
        ("READY#", "2"), ("GPUS", "0"), ("URL", "http://qwen-router.team:8080/v1"), ("AGE", "5m10s"),
        ("ADAPTERS", ""), ("COST/M", ""), ("REVISION", cluster.service["status"]["revision"]["current"]),
    ]  # fmt: skip
    assert [name for name, _ in columns(cluster.service)][-1] == "AGE"
    assert dict(columns({"metadata": {"name": "new"}, "spec": {}}))["READY"] == ""


def test_rounding_never_hides_an_engine_with_less_room() -> None:
    cluster = running({"replicas": 2})
    small = cluster.engine_pods[1]
    cluster.engines[small["metadata"]["name"]] = engine_state(small, memory(kv_tokens=1024))
    assert reconciled_status(cluster)["fit"]["kvTokens"] == 1024


def test_an_update_of_routers_is_progress_until_the_last_one_is_replaced() -> None:
    cluster = running({"router": {"replicas": 2}})
    cluster.edit(router={"replicas": 2, "workers": 2})
    seen = []
    for _ in range(5):
        status = reconciled_status(cluster)
        seen.append((*condition(status, "Progressing")[1:], condition(status, "Reconciling")[0]))
        cluster.run_controllers()
        cluster.remove_terminating_pods()
        assert sum(podutil.role(pod) == "router" and podutil.is_ready(pod) for pod in cluster.pods) >= 2
        make_routers_ready(cluster)
    assert seen == [
        ("Updating", "0 of 2 routers are new, 2 of before", "True"),
        ("Updating", "1 of 2 routers are new, 2 of before", "True"),
        ("Updating", "1 of 2 routers are new, 1 of before", "True"),
        ("Updating", "2 of 2 routers are new, 1 of before", "True"),
        ("Complete", f"revision {cluster.service['status']['revision']['current']} runs everywhere", "False"),
    ]


def test_routers_that_do_not_start_leave_those_of_before_serving_and_the_service_not_ready() -> None:
    cluster = running()
    cluster.edit(router={"workers": 2})
    for _ in range(4):
        cluster.reconcile()
        cluster.run_controllers()
        cluster.remove_terminating_pods()
        for pod in cluster.pods:
            if podutil.role(pod) == "router" and not podutil.is_ready(pod):
                cluster.terminate_container(pod, "router", 2, "blade_router: unknown flag --workers")
    status = reconciled_status(cluster)
    routers = [podutil.is_ready(pod) for pod in cluster.pods if podutil.role(pod) == "router"]
    assert sorted(routers) == [False, True]
    assert condition(status, "RouterReady") == ("True", "AllReady", "1 of 1 routers ready")
    assert condition(status, "Stalled")[0] == "True"
    assert condition(status, "Ready")[:2] == ("False", "CrashLoopBackOff")
    assert condition(status, "Ready")[2].startswith(
        "the spec is not in effect, what ran before serves; pod qwen-router"
    )
    assert status["phase"] == "Degraded"
    cluster.edit(router={})
    for _ in range(3):
        cluster.reconcile()
        cluster.run_controllers()
        cluster.remove_terminating_pods()
    assert condition(reconciled_status(cluster), "Ready")[0] == "True"
