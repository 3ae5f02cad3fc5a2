"""Reading Pod objects: who they belong to, whether they serve, which of their containers is in trouble.

What is kept of a pod must have: its name, namespace, labels, owners and timestamps; of its spec the node's name,
volumes, and of every container name, image, ports and resources; of its status all but ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from blade_operator.objects import Object
from blade_protocol.check import CheckReport
from blade_protocol.fetch import FetchReport
from blade_protocol.labels import REVISION, ROLE

T = TypeVar("T")

PATIENCE_S = 30.0
"""What may take a moment is in trouble only after so long."""
_CREATING = frozenset({"", "ContainerCreating", "PodInitializing"})

FETCH = "fetch"
CHECK = "check"
ENGINE = "engine"
ROUTER = "router"
"""Container names in the pods the operator renders."""
KEYS = "api-keys"
CERTIFICATE = "certificate"
"""Volume names in routers' pods: the user's Secrets."""


@dataclass(frozen=True, slots=True)
class End:
    """How a container ended."""

    exit_code: int
    reason: str
    message: str
    seconds: float
    """How long that run took; 0 when it is not known."""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One container of a pod, as its kubelet reports it."""

    name: str
    init: bool
    ready: bool
    restarts: int
    running: bool
    started: bool
    """Its startup probe has passed."""
    waiting: str
    """Reason it waits for, e.g. ``CrashLoopBackOff``; empty when it does not wait."""
    waiting_message: str
    end: End | None
    """How it ended, when it has ended and was not started again."""
    last_end: End | None
    """How its previous run ended."""


def role(pod: Object) -> str:
    """``engine`` or ``router``."""
    return str(pod["metadata"].get("labels", {}).get(ROLE, ""))


def revision(pod: Object) -> str:
    """The revision an engine pod runs; empty for others."""
    return str(pod["metadata"].get("labels", {}).get(REVISION, ""))


def is_terminating(pod: Object) -> bool:
    """Deleted, and finishing what it has."""
    return "deletionTimestamp" in pod["metadata"]


def is_finished(pod: Object) -> bool:
    """Its containers have ended for good: it holds nothing any more."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Object) -> bool:
    """Its Ready condition is True and nobody has deleted it."""
    if is_terminating(pod):
        return False
    return condition(pod, "Ready").get("status") == "True"


def condition(pod: Object, kind: str) -> Object:
    """Its condition of that type; empty when it reports none."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def containers(pod: Object) -> Iterator[ContainerState]:
    """Every container with a status, init containers first, in the order they run."""
    status = pod.get("status", {})
    order = [spec["name"] for field in ("initContainers", "containers") for spec in pod.get("spec", {}).get(field, ())]
    for field, init in (("initContainerStatuses", True), ("containerStatuses", False)):
        reported = status.get(field) or ()
        for entry in sorted(reported, key=lambda e: order.index(e["name"]) if e["name"] in order else len(order)):
            state, last = entry.get("state") or {}, entry.get("lastState") or {}
            waiting = state.get("waiting") or {}
            yield ContainerState(
                name=entry["name"],
                init=init,
                ready=bool(entry.get("ready")),
                restarts=entry.get("restartCount", 0),
                running="running" in state,
                started=bool(entry.get("started")),
                waiting=waiting.get("reason", ""),
                waiting_message=waiting.get("message", ""),
                end=_end(state.get("terminated")),
                last_end=_end(last.get("terminated")),
            )


def container(pod: Object, name: str) -> ContainerState | None:
    """The container of that name, when the pod reports one."""
    return next((state for state in containers(pod) if state.name == name), None)


def check_report(pod: Object) -> CheckReport | None:
    """What ``blade_llm_check`` left in the pod's termination log, in its latest run that ended."""
    return _report(pod, CHECK, CheckReport)


def fetch_report(pod: Object) -> FetchReport | None:
    """What ``blade_llm_fetch`` left there."""
    return _report(pod, FETCH, FetchReport)


def _report(pod: Object, name: str, kind: type[T]) -> T | None:
    state = container(pod, name)
    end = (state.end or state.last_end) if state else None
    if end is None or not end.message:
        return None
    try:
        return msgspec.json.decode(end.message.encode(), type=kind)
    except msgspec.DecodeError:
        return None


def lacks_a_mount(pod: Object, now: datetime) -> bool:
    """Whether its node could not set up its volumes, or its network, for longer than that should take."""
    if is_terminating(pod) or is_finished(pod):
        return False
    scheduled = condition(pod, "PodScheduled")
    since = scheduled.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    if scheduled.get("status") != "True" or age(since, now) < PATIENCE_S:
        return False
    if any(each.waiting not in _CREATING or each.running or each.end or each.last_end for each in containers(pod)):
        return False
    sandbox = condition(pod, "PodReadyToStartContainers").get("status")
    return sandbox == "False" if sandbox else not pod.get("status", {}).get("podIP")


def spec_of(pod: Object, name: str) -> Object:
    """The container of that name as the pod's spec has it; empty when there is none."""
    spec = pod.get("spec", {})
    every = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    return next((container for container in every if container["name"] == name), {})


def parse_time(text: Any) -> datetime | None:
    """A Kubernetes timestamp, or None where there is none."""
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def age(text: Any, now: datetime) -> float:
    """Seconds since a Kubernetes timestamp; 0 where there is none."""
    then = parse_time(text)
    return (now - then).total_seconds() if then is not None and then.tzinfo is not None else 0.0


def _end(terminated: dict[str, Any] | None) -> End | None:
    if not terminated:
        return None
    began, ended = parse_time(terminated.get("startedAt")), parse_time(terminated.get("finishedAt"))
    return End(
        exit_code=terminated.get("exitCode", 0),
        reason=terminated.get("reason", ""),
        message=terminated.get("message", ""),
        seconds=(ended - began).total_seconds() if began and ended else 0.0,
    )
