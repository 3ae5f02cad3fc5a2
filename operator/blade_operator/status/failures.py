"""Everything that went wrong with a service, what has recovered since included, in the order of causes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from blade_operator import pods as read
from blade_operator.objects import Object, Ref
from blade_operator.pods import FETCH
from blade_operator.status.container_failures import container_failure
from blade_operator.status.failure import Failure, with_hint
from blade_operator.status.pod_failures import pod_failure
from blade_operator.status.situation import Situation
from blade_operator.status.steady import steady
from blade_protocol.labels import ROLE, ROLE_ENGINE, ROLE_ROUTER

LIMIT = 16
REJECTED = "ApplyRejected"
_CRASHES = frozenset({"", "Completed", "Error", "CrashLoopBackOff"})
_OBJECT = re.compile(r'^[\w.]+ "[^"]*" is (invalid|forbidden): ')
_POD_NAME = re.compile(r'^pods "[^"]*" is forbidden: ')


def find_failures(situation: Situation, now: datetime) -> list[Failure]:
    """What still fails first, and there: refused objects, pods that cannot be made, engines, routers.

    A failure that is already in the status keeps its words while only figures in them have changed.
    """
    found = [
        *_rejections(situation),
        *_creation_failures(situation),
        *_of_pods(situation.current_pods, now),
        *_of_pods(situation.older_pods, now),
        *_last_ended(situation.ended(ROLE_ENGINE), situation.ready_engines < situation.replicas, now),
        *_of_pods(situation.router_pods, now),
        *_last_ended(situation.ended(ROLE_ROUTER), not any(map(read.is_ready, situation.router_pods)), now),
        *_of_pods(situation.leaving_pods, now, leaving=True),
    ]
    known = {failure_key(entry): entry for entry in situation.before.get("failures", ())}
    kept = [_as_written(_unless_arriving(failure, situation), known) for failure in found]
    return sorted(kept, key=lambda failure: not failure.broken)[:LIMIT]


def _rejections(situation: Situation) -> Iterator[Failure]:
    for ref, words in sorted(situation.rejected.items()):
        hint = _overlay(situation, ref) if ref.kind == "Deployment" else ""
        words = _OBJECT.sub("", " ".join(words.split()))
        message = with_hint(f"the cluster refuses {ref.kind} {ref.name}: {words}", hint)
        yield Failure("", "", "", REJECTED, message, stuck=True)


def _overlay(situation: Situation, ref: Ref) -> str:
    """The field with the user's own part of that Deployment's pods, if there is one."""
    if situation.service is None:
        return ""
    spec = situation.service.spec
    if ref.name == f"{situation.service.name}-router":
        return "spec.router.podTemplate" if spec.router.pod_template else ""
    return "spec.engine.podTemplate" if spec.engine.pod_template else ""


def _creation_failures(situation: Situation) -> Iterator[Failure]:
    """Deployments whose pods the API server does not let come into being."""
    for deployment in sorted(situation.deployments, key=lambda each: str(each["metadata"]["name"])):
        for condition in deployment.get("status", {}).get("conditions") or ():
            if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
                role = str(deployment["metadata"].get("labels", {}).get(ROLE, ""))
                words = _POD_NAME.sub("", condition.get("message", ""))
                yield _cannot_make(deployment["metadata"]["name"], role, condition.get("reason", ""), words)


def _cannot_make(name: str, role: str, reason: str, words: str) -> Failure:
    part = role or "engine"
    hint = ""
    if "violates PodSecurity" in words:
        reason, hint = "PodSecurityViolation", f"spec.{part}.podTemplate, or the namespace's pod-security labels"
    elif "exceeded quota" in words:
        asked = words.partition("requested: ")[2].partition(", used: ")[0]
        field = "spec.engine.gpus" if re.search(r"requests\.[^=,]*/", asked) else f"spec.{part}.resources"
        reason, hint = "QuotaExceeded", f"{field}, the replicas, or the namespace's ResourceQuota"
    elif "failed quota" in words:  # a quota that wants a request or limit the pods do not have
        reason, hint = "QuotaExceeded", f"spec.{part}.resources"
    message = with_hint(f"no pods can be made for Deployment {name}: {words}", hint)
    return Failure(role, "", "", reason or "FailedCreate", message, stuck=True)


def _of_pods(pods: Iterable[Object], now: datetime, *, leaving: bool = False) -> Iterator[Failure]:
    """One failure a pod. How the containers of a pod end that is leaving is of no interest any more."""
    for pod in pods:
        failure = pod_failure(pod, now) or (None if leaving else container_failure(pod))
        if failure is not None:
            yield failure


def _last_ended(pods: list[Object], missed: bool, now: datetime) -> Iterator[Failure]:
    """The latest of the pods that were ended: their records stay for long, and their successors tell of themselves."""
    latest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)
    if latest is not None and (failure := pod_failure(latest, now)) is not None:
        yield dataclasses.replace(failure, broken=missed)


def _unless_arriving(failure: Failure, situation: Situation) -> Failure:
    """A download that failed is not stuck while, tried once more, it gets on."""
    progress = situation.downloads.get(failure.pod)
    arriving = failure.container == FETCH and progress is not None and progress.bytes_per_second > 0
    return dataclasses.replace(failure, stuck=False) if arriving else failure


def _as_written(failure: Failure, known: dict[tuple[object, ...], Object]) -> Failure:
    entry = known.get(failure_key(failure.as_status()))
    if entry is None:
        return failure
    return dataclasses.replace(
        failure,
        message=steady(entry.get("message", ""), failure.message),
        last_log=steady(entry.get("lastLog", ""), failure.last_log),
    )


def failure_key(entry: Object) -> tuple[object, ...]:
    """What makes an entry of ``status.failures`` the same failure as one told before."""
    reason = entry.get("reason", "")
    # The states of a crash loop take turns. Where there is no pod, the object that is named tells failures apart.
    kind = "" if reason in _CRASHES else reason
    words = "" if entry["pod"] else entry.get("message", "").partition(":")[0]
    return (entry["pod"], entry.get("container", ""), entry.get("exitCode", 0), entry.get("restarts", 0), kind, words)
