"""All failures of a service, recovered ones included, in the order of causes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from blade_operator.model import pods as podutil
from blade_operator.model.controllers import CONTROLLERS
from blade_operator.model.objects import Object, Ref
from blade_operator.model.pods import FETCH
from blade_operator.status.deduplication import deduplicate
from blade_operator.status.failures.container_failures import container_failure
from blade_operator.status.failures.failure import Failure, with_hint
from blade_operator.status.failures.pod_failures import pod_failure
from blade_operator.status.inputs import StatusInputs
from blade_operator.status.machines import machine
from blade_protocol.labels import ROLE, ROLE_ENGINE, ROLE_ROUTER

LIMIT = 16
REJECTED = "ApplyRejected"
UNAUTHORIZED = "InternalTokenRefused"
_CRASHES = frozenset({"", "Completed", "Error", "CrashLoopBackOff"})
_OBJECT = re.compile(r'^[\w.]+ "[^"]*" is (invalid|forbidden): ')
_POD_NAME = re.compile(r'^pods "[^"]*" is forbidden: ')


def find_failures(inputs: StatusInputs, now: datetime) -> list[Failure]:
    """Failures that still fail first, and among them: rejected objects, pods that cannot be created, engines, routers.

    A failure that is already in the status keeps its message while only numbers in it have changed.
    """
    found = [
        *_rejections(inputs),
        *_creation_failures(inputs),
        *_incomplete_groups(inputs, now),
        *_unauthorized(inputs),
        *_pod_failures(inputs, inputs.current_pods, now),
        *_pod_failures(inputs, inputs.older_pods, now),
        *_latest_finished(inputs.finished_pods(ROLE_ENGINE), inputs.ready_engines < inputs.replicas, now),
        *_pod_failures(inputs, inputs.router_pods, now),
        *_latest_finished(inputs.finished_pods(ROLE_ROUTER), not any(map(podutil.is_ready, inputs.router_pods)), now),
        *_pod_failures(inputs, inputs.terminating_pods, now, terminating=True),
    ]
    known = {failure_key(entry): entry for entry in inputs.last_status.get("failures", ())}
    deduplicated = [_deduplicated(_unless_progressing(failure, inputs), known) for failure in found]
    return sorted(deduplicated, key=lambda failure: not failure.failing)[:LIMIT]


def _rejections(inputs: StatusInputs) -> Iterator[Failure]:
    for ref, cause in sorted(inputs.rejected.items()):
        hint = _overlay_field(inputs, ref) if ref.kind in CONTROLLERS else ""
        cause = _OBJECT.sub("", " ".join(cause.split()))
        message = with_hint(f"the cluster refuses {ref.kind} {ref.name}: {cause}", hint)
        yield Failure("", "", "", REJECTED, message, stuck=ref.kind != "Pod")


def _overlay_field(inputs: StatusInputs, ref: Ref) -> str:
    """The podTemplate field that overlays the pods of that workload, if it is set."""
    if inputs.service is None:
        return ""
    spec = inputs.service.spec
    if ref.name == f"{inputs.service.name}-router":
        return "spec.router.podTemplate" if spec.router.pod_template else ""
    return "spec.engine.podTemplate" if spec.engine.pod_template else ""


def _creation_failures(inputs: StatusInputs) -> Iterator[Failure]:
    """Yields a failure for each Deployment whose pods the API server refuses to create."""
    for deployment in sorted(inputs.deployments, key=lambda each: str(each["metadata"]["name"])):
        for condition in deployment.get("status", {}).get("conditions") or ():
            if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
                role = str(deployment["metadata"].get("labels", {}).get(ROLE, ""))
                cause = _POD_NAME.sub("", condition.get("message", ""))
                yield _creation_failure(deployment["metadata"]["name"], role, condition.get("reason", ""), cause)


def _incomplete_groups(inputs: StatusInputs, now: datetime) -> Iterator[Failure]:
    """Yields a failure for each group that lacks pods for long. The Events of its object alone say why."""
    for group in inputs.groups:
        if group.is_leaving or len(group.pods) == group.nodes or group.obj is None:
            continue
        if podutil.age(group.obj["metadata"].get("creationTimestamp"), now) >= podutil.GRACE_S:
            kind, name = group.obj["kind"], group.name
            message = (
                f"{len(group.pods)} of {group.nodes} pods could be made for {kind} {name}: "
                f"kubectl describe {kind.lower()} {name} says why"
            )
            yield Failure(ROLE_ENGINE, "", "", "FailedCreate", message, stuck=True)


def _creation_failure(name: str, role: str, reason: str, cause: str) -> Failure:
    part = role or "engine"
    hint = ""
    if "violates PodSecurity" in cause:
        reason, hint = "PodSecurityViolation", f"spec.{part}.podTemplate, or the namespace's pod-security labels"
    elif "exceeded quota" in cause:
        requested = cause.partition("requested: ")[2].partition(", used: ")[0]
        field = "spec.engine.gpus" if re.search(r"requests\.[^=,]*/", requested) else f"spec.{part}.resources"
        reason, hint = "QuotaExceeded", f"{field}, the replicas, or the namespace's ResourceQuota"
    elif "failed quota" in cause:  # a quota that demands a request or limit which the pods do not have
        reason, hint = "QuotaExceeded", f"spec.{part}.resources"
    message = with_hint(f"no pods can be made for Deployment {name}: {cause}", hint)
    return Failure(role, "", "", reason or "FailedCreate", message, stuck=True)


def _unauthorized(inputs: StatusInputs) -> Iterator[Failure]:
    """Yields one failure for all engines that expect another token: their service's Secret is of another root key."""
    if refusing := inputs.refusing_pods:
        volumes = {volume["name"]: volume for volume in refusing[0].get("spec", {}).get("volumes") or ()}
        secret = volumes.get(podutil.TOKEN, {}).get("secret", {}).get("secretName", "")
        message = (
            f"engines do not accept the operator's internal token: its root key has changed since Secret {secret} was "
            "made; the operator replaces it once no router starts, and pods take it up within two minutes, without a "
            "restart; until then, for ten minutes at most, routers stay as they are "
            f"(pod {refusing[0]['metadata']['name']} is the first of them)"
        )
        yield Failure(ROLE_ENGINE, "", "", UNAUTHORIZED, message)


def _pod_failures(
    inputs: StatusInputs, pods: Iterable[Object], now: datetime, *, terminating: bool = False
) -> Iterator[Failure]:
    """Yields at most one failure for each pod. How the containers of a terminating pod end does not matter."""
    for pod in inputs.machines_of(pods):
        failure = pod_failure(pod, now) or (None if terminating else container_failure(pod))
        if failure is not None and (which := machine(inputs, pod)):
            failure = dataclasses.replace(failure, message=with_hint(failure.message, which))
        if failure is not None:
            yield failure


def _latest_finished(pods: list[Object], failing: bool, now: datetime) -> Iterator[Failure]:
    """Yields the failure of the latest of the finished pods, which stay for long while their successors may be well."""
    latest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)
    if latest is not None and (failure := pod_failure(latest, now)) is not None:
        yield dataclasses.replace(failure, failing=failing)


def _unless_progressing(failure: Failure, inputs: StatusInputs) -> Failure:
    """``failure``, but not stuck when it is of a download that was retried and now makes progress."""
    progress = inputs.downloads.get(failure.pod)
    progressing = failure.container == FETCH and progress is not None and progress.bytes_per_second > 0
    return dataclasses.replace(failure, stuck=False) if progressing else failure


def _deduplicated(failure: Failure, known: dict[tuple[object, ...], Object]) -> Failure:
    entry = known.get(failure_key(failure.as_status()))
    if entry is None:
        return failure
    return dataclasses.replace(
        failure,
        message=deduplicate(entry.get("message", ""), failure.message),
        last_log=deduplicate(entry.get("lastLog", ""), failure.last_log),
    )


def failure_key(entry: Object) -> tuple[object, ...]:
    """Identity of an entry of ``status.failures``, which it shares with an earlier report of the same failure."""
    reason = entry.get("reason", "")
    # The states of a crash loop alternate. Where there is no pod, the object that is named distinguishes failures.
    kind = "" if reason in _CRASHES else reason
    named = "" if entry["pod"] else entry.get("message", "").partition(":")[0]
    return (entry["pod"], entry.get("container", ""), entry.get("exitCode", 0), entry.get("restarts", 0), kind, named)
