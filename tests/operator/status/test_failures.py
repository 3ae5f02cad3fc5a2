"""Failures of a service, derived from what a real kubelet, scheduler and controller manager report.

`recorded/pods.json` and `recorded/deployments.json` hold statuses as Kubernetes 1.36 wrote them, in order of time.
"""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from operator_support.kubernetes_cases import CASES, HUB, LIMIT
from operator_support.mini_cluster import MiniCluster, service
from operator_support.status import condition, reconciled_status

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object, Ref

FOLDER = Path(__file__).parent / "recorded"
PODS: dict[str, list[Object]] = json.loads((FOLDER / "pods.json").read_text())
DEPLOYMENTS: dict[str, Object] = json.loads((FOLDER / "deployments.json").read_text())
LATER = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)


def starting(spec: dict[str, Any] | None = None) -> MiniCluster:
    """A service whose pods exist, its router ready."""
    cluster = MiniCluster(service(spec))
    cluster.now = LATER
    cluster.reconcile()
    cluster.run_controllers()
    for pod in cluster.pods:
        if podutil.role(pod) == "router":
            cluster.become_ready(pod)
    return cluster


def put(cluster: MiniCluster, status: Object, number: int = 0) -> str:
    """Give an engine pod this status; returns the pod's name."""
    pod = cluster.engine_pods[number]
    pod["status"] = copy.deepcopy(status)
    pod["spec"]["nodeName"] = "node1"
    pod["metadata"]["creationTimestamp"] = "2026-11-21T19:31:17Z"
    cluster.engines.pop(pod["metadata"]["name"], None)
    return str(pod["metadata"]["name"])


def probed(statuses: list[Object]) -> list[Object]:
    """Statuses of containers whose probes have not passed yet; the recorded ones had no probes, and were ready."""
    result = copy.deepcopy(statuses)
    for status in result:
        for container in status.get("containerStatuses", ()):
            container |= {"ready": False, "started": False}
        for entry in status.get("conditions", ()):
            if entry["type"] in ("Ready", "ContainersReady"):
                entry |= {"status": "False"}
    return result


@pytest.mark.parametrize(("case", "spec", "reason", "message", "log", "stuck"), CASES, ids=[case[0] for case in CASES])
def test_the_cause_is_in_ready_degraded_and_the_failures(
    case: str, spec: dict[str, Any] | None, reason: str, message: str, log: str, stuck: bool
) -> None:
    cluster = starting(spec)
    pod = put(cluster, PODS[case][-1])
    status = reconciled_status(cluster)
    [failure] = status["failures"]
    reported = {key: failure.get(key, "") for key in ("pod", "reason", "message", "lastLog")}
    assert reported == {"pod": pod, "reason": reason, "message": message, "lastLog": log}
    ready = condition(status, "Ready")
    assert ready[0] == "False"
    assert message in ready[2] or case in ("crash-loop-check", "oom-killed-check")
    assert pod in ready[2]
    assert condition(status, "Degraded")[:2] == ("True", reason)
    assert message in condition(status, "Degraded")[2]
    assert condition(status, "Progressing")[1] == ("Stalled" if stuck else "Starting")
    assert status["phase"] == ("Failed" if stuck else "Degraded")
    warnings = [event for event in cluster.events if event.type == "Warning" and event.reason == reason]
    assert [event.message for event in warnings if message in event.message]


def test_the_reason_column_names_the_cause_itself() -> None:
    reasons = {}
    for case, spec, *_ in CASES:
        cluster = starting(spec)
        put(cluster, PODS[case][-1])
        reasons[case] = condition(reconciled_status(cluster), "Ready")[1]
    assert {case for case, reason in reasons.items() if reason == "EngineFailing"} == set()
    assert reasons["oom-killed"] == "OOMKilled"
    assert reasons["crash-loop-check"] == "CheckFailed"
    assert reasons["secret-missing"] == "CreateContainerConfigError"


@pytest.mark.parametrize("case", sorted(PODS))
def test_kubelet_noise_in_a_crash_loop_writes_no_status_and_no_event_twice(case: str) -> None:
    spec = {**LIMIT, **(HUB if "claim" in case or "secret" in case else {})}
    cluster = starting(spec)
    written = []
    statuses = PODS[case] if case == "node-lost" else probed(PODS[case])
    for status in statuses + statuses[-1:] * 2:
        put(cluster, status)
        written.append(cluster.reconcile().status)
    assert written[-2:] == [None, None]
    events = [(event.type, event.reason, event.message) for event in cluster.events]
    assert len(events) == len(set(events))


def loop(cluster: MiniCluster, statuses: list[Object], restarts: int, back_off: str) -> list[Any]:
    """The same states once more, later: more restarts, longer pauses, other ids. Returns what was written."""
    written = []
    for status in statuses:
        text = json.dumps(status).replace("19:3", "19:5").replace("back-off 2m40s", f"back-off {back_off}")
        noisy = json.loads(text)
        for field in ("initContainerStatuses", "containerStatuses"):
            for container in noisy.get(field, ()):
                container["restartCount"] = restarts if container["restartCount"] else 0
                container["containerID"] = f"containerd://{restarts:064x}"
        for entry in noisy.get("conditions", ()):
            entry["lastProbeTime"] = f"2026-11-21T19:5{restarts}:00Z"
        put(cluster, noisy)
        plan = cluster.reconcile()
        written.append((plan.status, plan.events))
    return written


@pytest.mark.parametrize("case", ["crash-loop", "oom-killed", "command-missing", "liveness-killed", "image-pull"])
def test_a_crash_loop_that_goes_on_writes_nothing(case: str) -> None:
    cluster = starting(LIMIT)
    # Its output is one line: what is tested is the loop and not the order in which two streams were read.
    statuses = json.loads(json.dumps(probed(PODS[case])).replace("starting\\n", ""))
    for status in statuses:
        put(cluster, status)
        cluster.reconcile()
    tail = [
        status for status in statuses if status["containerStatuses"][0]["restartCount"] >= 3 or case == "image-pull"
    ]
    loop(cluster, tail, 5, "5m0s")
    for restarts in (6, 7, 8, 9):
        assert loop(cluster, tail, restarts, "5m0s") == [(None, [])] * len(tail)


@pytest.mark.parametrize(
    ("case", "reason", "message"),
    [
        (
            "pod-security", "PodSecurityViolation",
            'no pods can be made for Deployment {name}: violates PodSecurity "restricted:latest": '
            "allowPrivilegeEscalation != false (container",
        ),
        (
            "quota", "QuotaExceeded",
            "no pods can be made for Deployment {name}: exceeded quota: small, requested: pods=1, used: pods=0, "
            "limited: pods=0 (spec.engine.resources, the replicas, or the namespace's ResourceQuota)",
        ),
        (
            "service-account-missing", "FailedCreate",
            "no pods can be made for Deployment {name}: error looking up service account team/missing: serviceaccount "
            '"missing" not found',
        ),
    ],
)  # fmt: skip
def test_pods_that_may_not_be_created_are_reported_with_the_api_servers_reason(
    case: str, reason: str, message: str
) -> None:
    cluster = starting()
    cluster.pods = [pod for pod in cluster.pods if podutil.role(pod) == "router"]
    [deployment] = [obj for ref, obj in cluster.objects.items() if ref.kind == "Deployment" and "-engine-" in ref.name]
    deployment["status"] = DEPLOYMENTS[case]
    message = message.format(name=deployment["metadata"]["name"])
    status = reconciled_status(cluster)
    [failure] = status["failures"]
    assert (failure["pod"], failure["reason"]) == ("", reason)
    assert failure["message"].startswith(message)
    assert condition(status, "Ready")[:2] == ("False", reason)
    assert message in condition(status, "Ready")[2]
    assert condition(status, "Progressing")[:2] == ("False", "Stalled")
    assert condition(status, "Degraded")[:2] == ("True", reason)
    # Another attempt, another name for the pod, another count of what is in use: nothing to report.
    cluster.events.clear()
    words = (
        json.dumps(deployment["status"])
        .replace("d-6dbcffb55c-", "d-6dbcffb55c-x")
        .replace("used: pods=0", "used: pods=2")
    )
    deployment["status"] = json.loads(words)
    assert (cluster.reconcile().status, cluster.events) == (None, [])


def test_a_quota_of_gpus_names_the_field_with_their_count() -> None:
    cluster = starting()
    cluster.pods = [pod for pod in cluster.pods if podutil.role(pod) == "router"]
    [deployment] = [obj for ref, obj in cluster.objects.items() if ref.kind == "Deployment" and "-engine-" in ref.name]
    gpus = "requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4"
    words = json.dumps(DEPLOYMENTS["quota"]).replace("requested: pods=1, used: pods=0, limited: pods=0", gpus)
    deployment["status"] = json.loads(words)
    message = reconciled_status(cluster)["failures"][0]["message"]
    assert message.endswith(f"{gpus} (spec.engine.gpus, the replicas, or the namespace's ResourceQuota)")


def test_an_evicted_pod_is_a_failure_until_it_is_replaced() -> None:
    cluster = starting()
    name = put(cluster, PODS["evicted"][-1])
    cluster.run_controllers()  # the ReplicaSet makes another
    assert len(cluster.engine_pods) == 2
    status = reconciled_status(cluster)
    message = 'was evicted: Usage of EmptyDir volume "m" exceeds the limit "1Mi". (spec.engine.resources)'
    [failure] = status["failures"]
    assert (failure["pod"], failure["reason"], failure["message"]) == (name, "Evicted", message)
    assert condition(status, "Ready")[1] == "Evicted"
    assert condition(status, "Progressing")[1] == "Starting"
    assert status["replicas"] == 1
    for pod in cluster.engine_pods:
        if not podutil.is_finished(pod):
            cluster.become_ready(pod)
    status = reconciled_status(cluster)
    assert condition(status, "Ready")[0] == "True"
    assert condition(status, "Degraded")[0] == "False"
    assert [failure["reason"] for failure in status["failures"]] == ["Evicted"]


def test_containers_that_wait_for_their_volumes_are_reported_after_half_a_minute() -> None:
    cluster = starting(HUB | {"model": {**HUB["model"], "cache": {"claimName": "models"}}})
    waiting = PODS["secret-volume-missing"][-1]
    name = put(cluster, waiting)
    cluster.now = datetime(2026, 11, 21, 19, 31, 40, tzinfo=UTC)
    assert "failures" not in reconciled_status(cluster)
    cluster.now = LATER
    status = reconciled_status(cluster)
    message = (
        "its containers wait since 2026-11-21T19:31:17Z for node node1 to set up its volumes (claim models) or its "
        f"network; kubectl describe pod {name} has the node's words"
    )
    assert [(failure["reason"], failure["message"]) for failure in status["failures"]] == [
        ("ContainerCreating", message)
    ]
    assert condition(status, "Ready")[1:] == ("ContainerCreating", f"0 of 1 engines ready; pod {name}: {message}")


def test_a_router_that_waits_for_its_secrets_names_them_and_their_fields() -> None:
    router = {"auth": {"keysSecret": {"name": "team-keys"}}, "tls": {"secretName": "team-certificate"}}
    cluster = starting({"router": router})
    [pod] = [each for each in cluster.pods if podutil.role(each) == "router"]
    pod["status"] = copy.deepcopy(PODS["secret-volume-missing"][-1])
    cluster.now = LATER
    [failure] = reconciled_status(cluster)["failures"]
    assert failure["reason"] == "ContainerCreating"
    assert "secret team-keys, secret team-certificate" in failure["message"]
    assert failure["message"].endswith("(spec.router.auth.keysSecret, spec.router.tls.secretName)")


def test_a_slow_image_pull_is_reported_and_is_no_failure() -> None:
    cluster = starting({"check": {"mode": "Off"}})
    waiting = copy.deepcopy(PODS["secret-volume-missing"][-1])
    waiting["conditions"][0]["status"] = "True"
    name = put(cluster, waiting)
    status = reconciled_status(cluster)
    assert condition(status, "Ready")[1:] == (
        "EnginesStarting", f"0 of 1 engines ready; pod {name} pulls its image engine:1",
    )  # fmt: skip
    assert "failures" not in status
    waiting["containerStatuses"][0]["state"] = {"running": {"startedAt": "2026-11-21T19:32:00Z"}}
    put(cluster, waiting)
    assert condition(reconciled_status(cluster), "Ready")[2] == f"0 of 1 engines ready; pod {name} loads the model"


def test_a_pod_that_no_scheduler_handles_is_reported() -> None:
    cluster = starting()
    pod = cluster.engine_pods[0]
    pod["metadata"]["creationTimestamp"] = "2026-11-21T19:59:50Z"
    pod["status"] = {"phase": "Pending"}
    assert "failures" not in reconciled_status(cluster)
    pod["metadata"]["creationTimestamp"] = "2026-11-21T19:50:00Z"
    assert reconciled_status(cluster)["failures"][0]["reason"] == "NotScheduled"


def test_a_started_engine_that_stops_passing_its_probe_is_reported() -> None:
    cluster = starting()
    cluster.converge()
    pod = cluster.engine_pods[0]
    [engine] = pod["status"]["containerStatuses"]
    engine |= {"ready": False, "started": True}
    pod["status"]["conditions"] = [
        {
            "type": "Ready",
            "status": "False",
            "reason": "ContainersNotReady",
            "lastTransitionTime": "2026-11-21T19:59:00Z",
        }
    ]
    [failure] = reconciled_status(cluster)["failures"]
    assert (failure["container"], failure["reason"]) == ("engine", "Unready")


def test_a_lost_nodes_pod_that_restarted_once_is_not_blamed_for_it() -> None:
    cluster = starting()
    status = copy.deepcopy(PODS["node-lost"][-1])
    status["containerStatuses"][0] |= {
        "restartCount": 1,
        "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
    }
    put(cluster, status)
    assert reconciled_status(cluster)["failures"][0]["reason"] == "NodeNotReady"
    # A readiness gate that somebody else has not opened gives a similar status, and is named.
    status["containerStatuses"][0].pop("lastState")
    status["conditions"][0]["reason"] = "ReadinessGatesNotReady"
    put(cluster, status)
    assert "failures" not in reconciled_status(cluster)


def test_a_pod_whose_termination_is_overdue_is_reported() -> None:
    cluster = starting()
    cluster.converge()
    gone = copy.deepcopy(cluster.engine_pods[0])
    gone["metadata"] |= {"name": "qwen-engine-old-1", "deletionTimestamp": "2026-11-21T19:59:50Z"}
    gone["spec"]["nodeName"] = "node7"
    cluster.pods.append(gone)
    assert "failures" not in reconciled_status(cluster)
    gone["metadata"]["deletionTimestamp"] = "2026-11-21T19:50:00Z"
    [failure] = reconciled_status(cluster)["failures"]
    assert failure["reason"] == "StillTerminating"
    assert "node7" in failure["message"]


def test_a_rejection_of_the_api_server_is_the_reason_of_ready() -> None:
    cluster = starting()
    words = "spec.template.spec.containers[0].image: Required value"
    sentence = f'Deployment.apps "qwen-router" is invalid: {words}'
    cluster.rejected = {Ref("Deployment", "team", "qwen-router"): sentence}
    status = reconciled_status(cluster)
    assert condition(status, "SpecValid")[0] == "True"
    message = f"the cluster refuses Deployment qwen-router: {words}"
    assert condition(status, "Ready") == ("False", "ApplyRejected", message)
    assert condition(status, "Degraded") == ("True", "ApplyRejected", message)
    assert condition(status, "Progressing") == ("False", "Stalled", message)
    assert ("Warning", "ApplyRejected", message) in [(e.type, e.reason, e.message) for e in cluster.events]
    cluster.events.clear()
    assert (cluster.reconcile().status, cluster.events) == (None, [])
    # Where the object holds a part that the user wrote, that part is named.
    cluster.edit(router={"podTemplate": {"spec": {"priorityClassName": "no such class"}}})
    assert condition(reconciled_status(cluster), "Ready")[2] == f"{message} (spec.router.podTemplate)"
    # A service that serves goes on serving.
    cluster.rejected = {}
    cluster.converge()
    cluster.rejected = {Ref("PodDisruptionBudget", "team", "qwen-engine"): "exceeded quota: small"}
    status = reconciled_status(cluster)
    assert condition(status, "Ready")[0] == "True"
    assert condition(status, "Stalled")[:2] == ("True", "Stalled")
    # Yet it does not run what the spec says.
    cluster.rejected = {Ref("Deployment", "team", "qwen-router"): sentence}
    status = reconciled_status(cluster)
    assert condition(status, "Ready")[:2] == ("False", "ApplyRejected")
    assert (condition(status, "RouterReady")[0], status["phase"]) == ("True", "Degraded")
    cluster.rejected = {Ref("PodDisruptionBudget", "team", "qwen-engine"): "exceeded quota: small"}
    status = reconciled_status(cluster)
    assert condition(status, "Degraded")[:2] == ("True", "ApplyRejected")


def test_an_old_crash_after_a_long_healthy_run_is_no_crash_loop() -> None:
    cluster = starting()
    status = copy.deepcopy(PODS["crash-loop"][-1])
    end = status["containerStatuses"][0]["lastState"]["terminated"]
    end["startedAt"] = "2026-11-21T10:00:00Z"
    put(cluster, status)
    assert condition(reconciled_status(cluster), "Progressing")[1] == "Starting"
